//! The signatures of libpcap's functions (pcap/pcap.h, pcap/bpf.h, pcap-namedb.h of libpcap 1.10.3), for macros that
//! generate code for each.

/// Passes to a macro the functions that do not use our handles, and go to the system's libpcap whatever their arguments
/// are. `$more` are additional functions.
macro_rules! forwarded {
    ($macro:ident $($more:tt)*) => {
        $macro! {
            bpf_dump(program: *const Program, option: c_int);
            bpf_filter(program: *const c_void, packet: *const c_uchar, length: c_uint, captured: c_uint) -> c_uint;
            bpf_image(instruction: *const c_void, number: c_int) -> *mut c_char;
            bpf_validate(program: *const c_void, length: c_int) -> c_int;
            pcap_compile_nopcap(snap_len: c_int, link: c_int, program: *mut Program, expression: *const c_char, optimize: c_int, netmask: u32) -> c_int;
            pcap_datalink_name_to_val(name: *const c_char) -> c_int;
            pcap_datalink_val_to_description(link: c_int) -> *const c_char;
            pcap_datalink_val_to_description_or_dlt(link: c_int) -> *const c_char;
            pcap_datalink_val_to_name(link: c_int) -> *const c_char;
            pcap_dump(user: *mut c_uchar, header: *const Header, bytes: *const c_uchar);
            pcap_dump_close(dumper: *mut Dumper);
            pcap_dump_file(dumper: *mut Dumper) -> *mut libc::FILE;
            pcap_dump_flush(dumper: *mut Dumper) -> c_int;
            pcap_dump_ftell(dumper: *mut Dumper) -> c_long;
            pcap_dump_ftell64(dumper: *mut Dumper) -> i64;
            pcap_ether_aton(text: *const c_char) -> *mut c_uchar;
            pcap_ether_hostton(name: *const c_char) -> *mut c_uchar;
            pcap_fopen_offline(file: *mut libc::FILE, error: *mut c_char) -> *mut Pcap;
            pcap_fopen_offline_with_tstamp_precision(file: *mut libc::FILE, precision: c_uint, error: *mut c_char) -> *mut Pcap;
            pcap_free_datalinks(list: *mut c_int);
            pcap_free_tstamp_types(list: *mut c_int);
            pcap_freealldevs(list: *mut Interface);
            pcap_freecode(program: *mut Program);
            pcap_init(options: c_uint, error: *mut c_char) -> c_int;
            pcap_lookupdev(error: *mut c_char) -> *mut c_char;
            pcap_nametoaddr(name: *const c_char) -> *mut *mut u32;
            pcap_nametoaddrinfo(name: *const c_char) -> *mut libc::addrinfo;
            pcap_nametoeproto(name: *const c_char) -> c_int;
            pcap_nametollc(name: *const c_char) -> c_int;
            pcap_nametonetaddr(name: *const c_char) -> u32;
            pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int) -> c_int;
            pcap_nametoportrange(name: *const c_char, first: *mut c_int, last: *mut c_int, protocol: *mut c_int) -> c_int;
            pcap_nametoproto(name: *const c_char) -> c_int;
            pcap_next_etherent(file: *mut libc::FILE) -> *mut c_void;
            pcap_offline_filter(program: *const Program, header: *const Header, bytes: *const c_uchar) -> c_int;
            pcap_open_dead(link: c_int, snap_len: c_int) -> *mut Pcap;
            pcap_open_dead_with_tstamp_precision(link: c_int, snap_len: c_int, precision: c_uint) -> *mut Pcap;
            pcap_open_offline(file: *const c_char, error: *mut c_char) -> *mut Pcap;
            pcap_open_offline_with_tstamp_precision(file: *const c_char, precision: c_uint, error: *mut c_char) -> *mut Pcap;
            pcap_statustostr(status: c_int) -> *const c_char;
            pcap_strerror(number: c_int) -> *const c_char;
            pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int;
            pcap_tstamp_type_val_to_description(kind: c_int) -> *const c_char;
            pcap_tstamp_type_val_to_name(kind: c_int) -> *const c_char;
            $($more)*
        }
    };
}

/// Passes all functions to a macro.
macro_rules! all {
    ($macro:ident) => {
        $crate::functions::forwarded! { $macro
            pcap_activate(pcap: *mut Pcap) -> c_int;
            pcap_breakloop(pcap: *mut Pcap);
            pcap_bufsize(pcap: *mut Pcap) -> c_int;
            pcap_can_set_rfmon(pcap: *mut Pcap) -> c_int;
            pcap_close(pcap: *mut Pcap);
            pcap_compile(pcap: *mut Pcap, program: *mut Program, expression: *const c_char, optimize: c_int, netmask: u32) -> c_int;
            pcap_create(device: *const c_char, error: *mut c_char) -> *mut Pcap;
            pcap_datalink(pcap: *mut Pcap) -> c_int;
            pcap_datalink_ext(pcap: *mut Pcap) -> c_int;
            pcap_dispatch(pcap: *mut Pcap, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int;
            pcap_dump_fopen(pcap: *mut Pcap, file: *mut libc::FILE) -> *mut Dumper;
            pcap_dump_open(pcap: *mut Pcap, file: *const c_char) -> *mut Dumper;
            pcap_dump_open_append(pcap: *mut Pcap, file: *const c_char) -> *mut Dumper;
            pcap_file(pcap: *mut Pcap) -> *mut libc::FILE;
            pcap_fileno(pcap: *mut Pcap) -> c_int;
            pcap_findalldevs(list: *mut *mut Interface, error: *mut c_char) -> c_int;
            pcap_get_required_select_timeout(pcap: *mut Pcap) -> *const libc::timeval;
            pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int;
            pcap_get_tstamp_precision(pcap: *mut Pcap) -> c_int;
            pcap_geterr(pcap: *mut Pcap) -> *mut c_char;
            pcap_getnonblock(pcap: *mut Pcap, error: *mut c_char) -> c_int;
            pcap_inject(pcap: *mut Pcap, bytes: *const c_void, length: usize) -> c_int;
            pcap_is_swapped(pcap: *mut Pcap) -> c_int;
            pcap_lib_version() -> *const c_char;
            pcap_list_datalinks(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int;
            pcap_list_tstamp_types(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int;
            pcap_lookupnet(device: *const c_char, network: *mut u32, mask: *mut u32, error: *mut c_char) -> c_int;
            pcap_loop(pcap: *mut Pcap, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int;
            pcap_major_version(pcap: *mut Pcap) -> c_int;
            pcap_minor_version(pcap: *mut Pcap) -> c_int;
            pcap_next(pcap: *mut Pcap, header: *mut Header) -> *const c_uchar;
            pcap_next_ex(pcap: *mut Pcap, header: *mut *mut Header, bytes: *mut *const c_uchar) -> c_int;
            pcap_open_live(device: *const c_char, snap_len: c_int, promiscuous: c_int, timeout: c_int, error: *mut c_char) -> *mut Pcap;
            pcap_perror(pcap: *mut Pcap, prefix: *const c_char);
            pcap_sendpacket(pcap: *mut Pcap, bytes: *const c_uchar, length: c_int) -> c_int;
            pcap_set_buffer_size(pcap: *mut Pcap, bytes: c_int) -> c_int;
            pcap_set_datalink(pcap: *mut Pcap, link: c_int) -> c_int;
            pcap_set_immediate_mode(pcap: *mut Pcap, immediate: c_int) -> c_int;
            pcap_set_promisc(pcap: *mut Pcap, promiscuous: c_int) -> c_int;
            pcap_set_protocol_linux(pcap: *mut Pcap, protocol: c_int) -> c_int;
            pcap_set_rfmon(pcap: *mut Pcap, monitor: c_int) -> c_int;
            pcap_set_snaplen(pcap: *mut Pcap, bytes: c_int) -> c_int;
            pcap_set_timeout(pcap: *mut Pcap, milliseconds: c_int) -> c_int;
            pcap_set_tstamp_precision(pcap: *mut Pcap, precision: c_int) -> c_int;
            pcap_set_tstamp_type(pcap: *mut Pcap, kind: c_int) -> c_int;
            pcap_setdirection(pcap: *mut Pcap, direction: c_int) -> c_int;
            pcap_setfilter(pcap: *mut Pcap, program: *mut Program) -> c_int;
            pcap_setnonblock(pcap: *mut Pcap, nonblock: c_int, error: *mut c_char) -> c_int;
            pcap_snapshot(pcap: *mut Pcap) -> c_int;
            pcap_stats(pcap: *mut Pcap, stats: *mut Stats) -> c_int;
        }
    };
}

pub(crate) use {all, forwarded};
