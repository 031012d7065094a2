# Sourced after tap.sh by tests that need two hosts: two network namespaces, hosts[0] (10.77.0.1) and
# hosts[1] (10.77.0.2), and one link between them. Not a test itself.
hosts=("tdn$$a" "tdn$$b")

netns_clean() {
    # shellcheck disable=SC2046
    kill -KILL $(jobs -p) 2>/dev/null
    ip netns del "${hosts[0]}" 2>/dev/null
    ip netns del "${hosts[1]}" 2>/dev/null
    rm -rf "$work"
}

link() { # link up|down
    ip -n "${hosts[0]}" link set wire "$1"
}

on() { # on HOST COMMAND...: 0 or 1
    local host=${hosts[$1]}
    shift
    ip netns exec "$host" "$@"
}

[ -e "${BUILD:-build/cc}/libtandem-gloo.so" ] || skip_all 'two network namespaces' 'libgloo-dev is not installed'
command -v ip >/dev/null || skip_all 'two network namespaces' 'iproute2 is not installed'
trap netns_clean EXIT
{
    ip netns add "${hosts[0]}" && ip netns add "${hosts[1]}" &&
        ip -n "${hosts[0]}" link add wire type veth peer name wire netns "${hosts[1]}"
} 2>"$work/err" || skip_all 'two network namespaces' "no network namespaces here: $(head -n 1 "$work/err")"
for i in 0 1; do
    ip -n "${hosts[i]}" addr add "10.77.0.$((i + 1))/24" dev wire
    ip -n "${hosts[i]}" link set wire up
    ip -n "${hosts[i]}" link set lo up
done
