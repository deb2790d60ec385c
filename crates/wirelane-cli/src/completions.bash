# Offers devices, also behind the comma of a list. Names are quoted, and not expanded by the shell.
_wirelane_devices() {
    local list= name quoted
    [[ $1 == *,* ]] && list=${1%,*},
    COMPREPLY=()
    while IFS= read -r name; do
        printf -v quoted %q "$name"
        [[ $list$quoted == "$1"* ]] && COMPREPLY+=("$list$quoted")
    done < <(wirelane devices --names 2>/dev/null)
}

# Readline splits words at '@' and '=': joins virtual devices (eth1@0), and leaves out the '=' of an option.
_wirelane_joined() {
    local words=() word= before=
    for word in "${COMP_WORDS[@]:0:COMP_CWORD + 1}"; do
        if [[ ${#words[@]} -gt 0 && ($word == @ || $before == @) ]]; then
            words[-1]+=$word
        elif [[ $word != = ]]; then
            words+=("$word")
        fi
        before=$word
    done
    [[ $word == = ]] && words+=("")
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) cut=
    # Readline completes only the part from the '@' on.
    cut=${words[-1]%"$2"}
    _wirelane "$1" "${words[-1]}" "${words[-2]}"
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}

