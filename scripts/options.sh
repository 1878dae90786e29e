# shellcheck shell=bash
# Sourced by the scripts beside it: the values of their options, and what is said of wrong ones. Each ends the script with 2 if it has to,
# from within $(...) too, since a failed assignment ends the script.

# usage [WHAT]: says what is wrong and shows the comment on top of the script.
usage() {
    [ $# -eq 0 ] || printf '%s: %s\n' "${0##*/}" "$1" >&2
    manual >&2
    exit 2
}

# manual: prints the comment on top of the script.
manual() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"; }

# Every script has these, whatever else it takes.
case ${1:-} in --help | -h) manual; exit ;; esac

# text OPTION VALUE...: prints the value.
text() {
    case ${2:---} in --*) usage "$1 needs a value" ;; esac
    printf '%s\n' "$2"
}

# number OPTION VALUE...: the same for a whole number from 1 on.
number() {
    case ${2:-} in
        '' | *[!0-9]* | ????????????????*) ;;
        # Leading zeros do not make it octal.
        *) [ $((10#$2)) -eq 0 ] || { echo $((10#$2)); return; } ;;
    esac
    usage "$1 needs a whole number from 1 on${2:+, not \"$2\"}"
}

# names OPTION LIST KNOWN...: whether every name of the list, which has commas, is known.
names() {
    local option=$1 list name
    IFS=, read -ra list <<<"$2"
    shift 2
    for name in "${list[@]}"; do
        [[ " $* " == *" $name "* ]] || usage "$option: there is no \"$name\"; there are $*"
    done
}
