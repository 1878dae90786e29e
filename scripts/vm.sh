#!/usr/bin/env bash
# Runs a command in a virtual machine: Debian's stock cloud kernel in qemu, by software emulation, with nothing but an initramfs that
# holds the release binaries (bin/), scripts/, tuning/, bench/scenarios/ and busybox. Shows the command's output as it comes and ends with
# its exit code; 124 when the time is over, 125 when the machine ended without one. There is no network but the guest's loopback. The
# command's environment names the binaries, so that scripts that source common.sh build nothing.
# Usage: vm.sh [--memory-mib 12288] [--cpus 2] [--timeout-s 600] COMMAND...
# Installs qemu when it is missing; the kernel and busybox are packages that are only unpacked, below target/vm.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

memory_mib=12288
cpus=2
timeout_s=600
while [ $# -gt 0 ]; do
    case $1 in
    --memory-mib) memory_mib=$(number "$@") ;;
    --cpus) cpus=$(number "$@") ;;
    --timeout-s) timeout_s=$(number "$@") ;;
    -*) usage "unknown option $1" ;;
    *) break ;;
    esac
    shift 2
done
[ $# -gt 0 ] || usage "which command?"

packages=$target/vm
mkdir -p "$packages"

# unpack PACKAGE: fetches a Debian package and unpacks it below $packages, unless that has been done.
unpack() {
    [ -e "$packages/$1" ] && return
    echo "fetching $1" >&2
    mkdir -p "$work/fetch"
    if ! (cd "$work/fetch" && apt-get download -qq "$1" 2>"$work/apt.log"); then
        apt-get update -qq >&2
        (cd "$work/fetch" && apt-get download -qq "$1")
    fi
    dpkg -x "$work/fetch/$1"_*.deb "$packages/$1.part"
    mv "$packages/$1.part" "$packages/$1"
}

# install_with_libraries FILE PATH: copies a program and the shared libraries that it names into the initramfs.
install_with_libraries() {
    local library
    install -D "$1" "$tree/$2"
    { ldd "$1" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$tree/$library"
    done
}

"$root/scripts/install.sh" qemu-system-x86_64 qemu-system-x86
"$root/scripts/install.sh" ip iproute2
"$root/scripts/install.sh" strip binutils
for package in busybox-static linux-image-cloud-amd64; do
    # The kernel's package only names that of its current version.
    [ "$package" = busybox-static ] || package=$(find "$packages" -maxdepth 1 -name 'linux-image-*-cloud-amd64' -printf '%f\n' | tail -1)
    [ -n "$package" ] || package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
    [ -n "$package" ] || { echo "there is no package linux-image-cloud-amd64 here: is this Debian, on x86-64?" >&2; exit 125; }
    unpack "$package"
done
kernel=$(find "$packages/$package/boot" -name 'vmlinuz-*')

build_broker
build_bench
tree=$work/tree
mkdir -p "$tree"/{bin,dev,proc,sys,tmp,root,usr/bin,corelane/bin}
ln -s /bin/busybox "$tree/usr/bin/env"
install "$packages/busybox-static/bin/busybox" "$tree/bin/busybox"
install_with_libraries "$(command -v bash)" bin/bash
# busybox's own knows no rto_min.
install_with_libraries "$(PATH=$PATH:/usr/sbin command -v ip)" usr/bin/ip
for program in $broker $bench/corelane-bench; do
    # The command of the broker may carry arguments; they are for the host.
    [ -x "$program" ] || continue
    install_with_libraries "$program" "corelane/bin/${program##*/}"
    strip "$tree/corelane/bin/${program##*/}"
done
cp -r "$root/scripts" "$root/tuning" "$tree/corelane/"
mkdir "$tree/corelane/bench"
cp -r "$root/bench/scenarios" "$tree/corelane/bench/"
printf '%q ' "$@" >"$tree/command"
cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
ln -s /proc/self/fd /dev/fd
ip link set lo up
# An emulated machine takes tens of microseconds for each packet, and has no CPU at all while others use the host's: a burst takes longer
# than the 200 ms after which TCP sends again, and what is sent again makes it longer still. And so slow a core leaves its packets to
# ksoftirqd, which has to come before the sender: that one would run ahead of it for as long as it has something to send.
for network in 127.0.0.0/8 127.0.0.1; do
    /usr/bin/ip route replace local "$network" dev lo table local proto kernel scope host src 127.0.0.1 rto_min 60s
done
for thread in $(grep -l '^ksoftirqd/' /proc/[0-9]*/comm); do
    thread=${thread%/comm}
    renice -n -20 -p "${thread##*/}"
done
stty -F /dev/ttyS1 raw -echo
exec </dev/null >/dev/ttyS1 2>&1
export PATH=/bin HOME=/root CORELANE_BROKER=/corelane/bin/corelane CORELANE_BENCH_BIN=/corelane/bin
cd /corelane
# Through a pipe, because a serial port is a terminal and lines would be written for one.
{ bash /command; echo $? >/dev/ttyS2; } 2>&1 | cat
# What is written to a serial port leaves it in the background.
sleep 1
poweroff -f
INIT
chmod +x "$tree/init"
(cd "$tree" && find . | "$tree/bin/busybox" cpio -o -H newc) >"$work/initramfs" 2>/dev/null
# From here on the tree is only in the initramfs.
rm -rf "$tree"

echo "booting ${kernel##*/} with $cpus CPUs and $memory_mib MiB" >&2
# ttyS0 is the kernel's console, ttyS1 the command's output, ttyS2 its exit code.
timeout --kill-after=10 "$timeout_s" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory_mib" \
    -machine q35 -nodefaults -no-reboot -display none -kernel "$kernel" -initrd "$work/initramfs" \
    -append 'console=ttyS0 quiet panic=-1 tsc=reliable rdinit=/init' \
    -serial "file:$work/console" -serial stdio -serial "file:$work/exit" </dev/null &
pids+=("$!")
result=0
wait "$!" || result=$?
if [ "$result" -eq 124 ]; then
    echo "the time of $timeout_s s is over" >&2
elif [ -s "$work/exit" ]; then
    result=$(tr -d '\r\n' <"$work/exit")
else
    echo "the virtual machine ended without a result; its console:" >&2
    tail -40 "$work/console" >&2
    result=125
fi
exit "$result"
