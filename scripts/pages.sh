#!/bin/sh
# The manual page and the completion of bash for a program, from what its --help prints.
# usage: scripts/pages.sh man|completion NAME PROGRAM VERSION
set -eu
kind=$1 name=$2 program=$3 version=$4
help=$("$program" --help)
case $kind in
man)
    # "  -x, --name=TEXT     What it does", on the same line or below, indented.
    printf '%s\n' "$help" | awk -v name="$name" -v version="$version" '
        function quoted(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.\x27]/, "\\\\\\&&", text); return text }
        BEGIN { printf ".TH %s 1 \"\" \"tandem %s\"\n.SH NAME\n%s \\- a program of tandem\n.SH SYNOPSIS\n", toupper(name), version, quoted(name) }
        /^[Uu]sage:/ { sub(/^[Uu]sage: */, ""); sub(/^[^ ]*/, name); print quoted($0); print ".SH DESCRIPTION"; next }
        /^ +-/ {
            if (!options++) print ".SH OPTIONS"
            at = match(substr($0, 7), /  +[^ ]/)
            words = at ? substr($0, 1, at + 6) : $0
            gsub(/^ +| +$/, "", words)
            print ".TP\n.B " quoted(words)
            if (at) { text = substr($0, at + 6); sub(/^ +/, "", text); print quoted(text) }
            next
        }
        /^ *$/ { print ".PP"; next }
        { sub(/^ +/, ""); print quoted($0) }'
    ;;
completion)
    words=$(printf '%s\n' "$help" | grep -oE '(^| )--[a-z][a-z0-9-]*=?' | tr -d ' ' | sort -u | tr '\n' ' ')
    printf '# %s: its options, and files.\ncomplete -o default -o nospace -W "%s" %s\n' "$name" "${words% }" "$name"
    ;;
esac
