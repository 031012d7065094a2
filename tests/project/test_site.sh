#!/usr/bin/env bash
# The documents: each link leads somewhere, each page can be reached from README.md; and as a site (make site).
# run: plain
. "$(dirname "$0")/../help/tap.sh"
repository=$PWD
works 'all links' python3 scripts/site.py --check
mapfile -t lessons < <(grep -oE '\]\([^ ()]*\.md\)' docs/tutorial/README.md | tr -d ']()' | grep -E '^[1-9]|leaves')
for ((i = 1; i < ${#lessons[@]}; i++)); do
    grep -q "^Next: .*[(/]$(basename "${lessons[i]}"))$" "docs/tutorial/${lessons[i - 1]}" || echo "${lessons[i - 1]} does not lead to ${lessons[i]}"
done >"$work/out"
[ "${#lessons[@]}" -ge 24 ] && [ ! -s "$work/out" ]
tap $? 'each lesson leads to the next one' "$work/out"

mkdir -p "$work/tree/docs"
site=$PWD/scripts/site.py
cd "$work/tree" || exit 1
mkdir sources
printf '# Start\n\n[a](docs/a.md), [its second part](docs/a.md#the-second-part), [sources](sources)\n' >README.md
printf '# A\n\n## The `second` part\n- one\n\n```diff old new\n[no link](nowhere.md)\n```\n[above](#a), [start](../README.md)\n' >docs/a.md
works 'links of every kind' python3 "$site" --check
finds() { # finds NAME PATTERN TEXT: the check fails if a page ends with this text
    cp docs/a.md "$work/a.md"
    printf '%s\n' "$3" >>docs/a.md
    ! python3 "$site" --check >"$work/out" 2>&1 && grep -qx "$2" "$work/out"
    tap $? "$1" "$work/out"
    cp "$work/a.md" docs/a.md
}
finds 'a page that is not there' 'docs/a.md: there is no docs/b.md' '[b](b.md)'
finds 'an image that is not there' 'docs/a.md: there is no docs/b.svg' '![b](b.svg)'
finds 'a heading that is not there' 'docs/a.md: README.md has no heading #begin' '[b](../README.md#begin)'
finds 'a heading of the page itself' 'docs/a.md: docs/a.md has no heading #b' '[b](#b)'
echo '# B' >docs/b.md
finds 'a page that no page leads to' 'docs/b.md: no page leads here' ''
rm docs/b.md
works 'as mkdocs reads it' python3 "$site" "$work/site"
grep -qx '\[a\](a.md), \[its second part\](a.md#the-second-part), sources' "$work/site/pages/index.md"
tap $? 'links between places on the site' "$work/site/pages/index.md"
grep -qx '```diff' "$work/site/pages/a.md" && grep -qx '\[no link\](nowhere.md)' "$work/site/pages/a.md"
tap $? 'code stays' "$work/site/pages/a.md"

cd "$repository" || exit 1
if ! command -v mkdocs >"$work/out"; then
    echo '# skipped: there is no mkdocs (make deps-dev): the site is not built'
    done_testing
    exit
fi
works 'the pages of this tree' python3 scripts/site.py "$work/site"
works 'the site' mkdocs build -q -s -f "$work/site/mkdocs.yml"
works 'what it has' python3 - "$work/site" <<'END'
import glob, html.parser, json, os, re, sys
root = sys.argv[1] + "/html"

class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids, self.loads = [], set(), []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and tag != "a":
                self.loads.append(value)
            elif name == "href":
                self.links.append(value)

pages = {}
for path in glob.glob(root + "/**/*.html", recursive=True):
    pages[path] = Links()
    pages[path].feed(open(path, encoding="utf-8").read())
wrong = []
for path, page in pages.items():
    if path.endswith("404.html"):
        continue
    wrong += [f"{path} loads {link}" for link in page.loads if re.match("(https?:)?//", link)]
    for link in page.loads + page.links:
        name, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if re.match("[a-z]+:", link):
            continue
        if not os.path.exists(target) or (anchor and target in pages and anchor not in pages[target].ids):
            wrong.append(f"{path}: {link} leads nowhere")
index = json.load(open(root + "/search/search_index.json"))
found = {entry["location"].split("#")[0] for entry in index["docs"]}
if "tutorial/7-cifar-ddp-spawn.html" not in found or len(found) < 40:
    wrong.append(f"the search knows {len(found)} pages")
print(f"{len(pages)} pages")
sys.exit("\n".join(wrong))
END
done_testing
