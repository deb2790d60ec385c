# One command for each thing one does here; `make` alone lists them.

# rustup's folder, for shells that have not been told of it.
export PATH := $(PATH):$(HOME)/.cargo/bin

PREFIX ?= /usr/local
DESTDIR ?=
SHARE = $(DESTDIR)$(PREFIX)/share
# What is installed.
BINARY ?= target/release/wirelane
# The libraries beside it, and where they go: nothing finds them there that does not look for them.
BUILT = $(dir $(BINARY))
LIBRARIES = $(DESTDIR)$(PREFIX)/lib/wirelane
# The tools for symbols, and what runs the program to write its manual pages: others for a program for another processor.
STRIP ?= strip
OBJCOPY ?= objcopy
RUNNER ?=
# Where Wireshark looks for programs that capture: its own folder below /usr, elsewhere the folder that one of the same
# prefix has.
WIRESHARK = $(shell PATH=$$PATH:/usr/bin tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p')
EXTCAP ?= $(if $(filter /usr,$(PREFIX)),$(or $(WIRESHARK),/usr/lib/$(shell uname -m)-linux-gnu/wireshark/extcap),$(PREFIX)/lib/wireshark/extcap)

# Exists once `make build` has built the program. Until then the demo builds one without the store, and with fewer
# optimisations, which takes minutes less.
WHOLE = target/release/.whole

# Installs a program or library without symbols; these go into the folder .debug beside it, where debuggers look for them.
define install_stripped
	install -D -m 755 $(1) $(2)
	install -d $(dir $(2)).debug
	$(OBJCOPY) --only-keep-debug $(1) $(dir $(2)).debug/$(notdir $(2)).debug
	$(STRIP) --strip-unneeded $(2)
	$(OBJCOPY) --add-gnu-debuglink=$(dir $(2)).debug/$(notdir $(2)).debug $(2)
endef

.PHONY: help setup build check test test-all test-kernels soak fuzz demo fleet bench docs install packages packages-arm64 advisories clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: ## install packages for building, checks, tests and the demo (Debian and Ubuntu)
	@scripts/setup build demo check test kernels

# The test-bed has no store: with its features of shared dependencies, Arrow and Parquet would be built a second time.
build: ## build the wirelane program: target/release/wirelane
	@scripts/setup build
	scripts/cargo-release -p wirelane-cli -p wirelane-libpcap-dropin -p wirelane-libpcap-preload
	scripts/cargo-release -p wirelane-lab --bin wirelane-testbed --no-default-features --features bench
	@touch $(WHOLE)

check: ## format, lints and unit tests: no root, minutes
	@scripts/setup build check
	@scripts/check

test: ## every check and every test (root or sudo; WIRELANE_KERNELS=none)
	@scripts/setup build demo check test kernels
	@scripts/test

test-all: ## the gate, then every kernel, long runs and fuzzing: hours
	@scripts/setup build demo check test kernels
	@scripts/test-all

test-kernels: ## test on other kernels (KERNELS="host bookworm", ACCEPT=1)
	@scripts/setup build test kernels
	@ACCEPT=$(or $(ACCEPT),0) scripts/test-kernels $(KERNELS)

soak: ## half an hour of paced load (MINUTES=30), 1000 libpcap handles
	@scripts/setup build test
	@cargo build --quiet -p wirelane-cli
	@WIRELANE_SOAK_SECONDS=$$(($(or $(MINUTES),30) * 60)) cargo test -p wirelane-tests --test all loads::a_paced -- --nocapture
	@cargo build --quiet -p wirelane-libpcap-dropin -p wirelane-libpcap-preload
	@WIRELANE_PCAP_CYCLES=1000 cargo test -p wirelane-tests --test all libpcap::opening_and_closing -- --nocapture

fuzz: ## fuzz packets, files, filters, rules, calls, probes (FUZZ_SECONDS=60; nightly Rust)
	@scripts/setup build
	@scripts/fuzz

demo: ## capture real traffic and compare all counts (KEEP=FILE keeps it)
	@scripts/setup build demo
	$(if $(wildcard $(WHOLE)),scripts/cargo-release,cargo build --profile demo --no-default-features) -p wirelane-cli
	@scripts/demo --wirelane target/$(if $(wildcard $(WHOLE)),release,demo)/wirelane $(if $(KEEP),--keep "$(KEEP)")

fleet: ## three probes, ClickHouse and Kafka: compare all answers
	@scripts/setup build demo fleet
	cargo build --profile demo -p wirelane-cli --features kafka
	@scripts/fleet

bench: ## measure ours beside its peers, hours (QUICK=1: shorter; OPTIONS="--only skew"; PARTS=none)
	@scripts/setup build bench
	@PARTS="$(PARTS)" scripts/bench $(if $(QUICK),--quick) $(OPTIONS)

docs: ## build the book, target/book (needs mdbook and 'make build')
	@scripts/docs

install: ## install program, libraries, manual pages to PREFIX (/usr/local)
	@test -x $(BINARY) -a -f $(BUILT)libwirelane_libpcap_dropin.so || { echo "nothing is built yet, or not all of it: run 'make build' first" >&2; exit 1; }
	$(call install_stripped,$(BINARY),$(DESTDIR)$(PREFIX)/bin/wirelane)
	$(if $(wildcard $(BUILT)wirelane-testbed),$(call install_stripped,$(BUILT)wirelane-testbed,$(DESTDIR)$(PREFIX)/bin/wirelane-testbed))
	install -d $(DESTDIR)$(PREFIX)/include/wirelane $(SHARE)/wirelane/probes
	install -m 644 examples/probes/*.toml $(SHARE)/wirelane/probes
	install -m 644 include/wirelane/*.h $(DESTDIR)$(PREFIX)/include/wirelane
	$(call install_stripped,$(BUILT)libwirelane_libpcap_dropin.so,$(LIBRARIES)/libpcap.so.0.8)
	ln -sf libpcap.so.0.8 $(LIBRARIES)/libpcap.so
	$(call install_stripped,$(BUILT)libwirelane_libpcap_preload.so,$(LIBRARIES)/libwirelane-pcap.so)
	install -d $(LIBRARIES)/pkgconfig $(DESTDIR)$(EXTCAP)
	sed 's|@PREFIX@|$(PREFIX)|' crates/wirelane-libpcap/libpcap.pc.in >$(LIBRARIES)/pkgconfig/libpcap.pc
	printf '#!/bin/sh\nexec %s/bin/wirelane extcap "$$@"\n' '$(PREFIX)' >$(DESTDIR)$(EXTCAP)/wirelane
	chmod 755 $(DESTDIR)$(EXTCAP)/wirelane
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions \
		$(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(RUNNER) $(BINARY) man --dir $(SHARE)/man/man1
	@if command -v python3 >/dev/null; then scripts/man-pages $(SHARE)/man; else \
		echo "install: manual pages of sections 5 and 7 need python3: left out" >&2; fi
	$(RUNNER) $(BINARY) completions bash >$(SHARE)/bash-completion/completions/wirelane
	$(RUNNER) $(BINARY) completions zsh >$(SHARE)/zsh/site-functions/_wirelane
	$(RUNNER) $(BINARY) completions fish >$(SHARE)/fish/vendor_completions.d/wirelane.fish

packages: ## package what is built: target/packages (KINDS="deb rpm tarball image")
	@scripts/setup package
	@scripts/package --binary $(BINARY) $(KINDS)

packages-arm64: ## build and package for arm64, on any machine (needs rustup)
	@scripts/setup build package arm64
	@scripts/arm64-root
	. scripts/arm64-environment && scripts/cargo-release -p wirelane-cli -p wirelane-libpcap-dropin -p wirelane-libpcap-preload
	@scripts/package --binary target/aarch64-unknown-linux-gnu/release/wirelane $(KINDS)

advisories: ## compare crates with RustSec's advisories and the licences of deny.toml (needs cargo-deny)
	@scripts/advisories

clean: ## remove what was built
	cargo clean
