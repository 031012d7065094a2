#!/usr/bin/env python3
"""The documents as a site: README.md, docs/ and what they link to, as mkdocs wants them. Checks all links on the way.

usage: site.py FOLDER      writes FOLDER/pages and FOLDER/mkdocs.yml
       site.py --check     checks the links alone
"""
import itertools
import os
import re
import shutil
import sys

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
START = ["README.md"]


def slug(heading):
    """A heading's anchor, as GitHub and mkdocs make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", words.strip().lower()))


def parts(text):
    """Pairs of a line and whether it is code."""
    code = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield line, code or fence
        code = code != fence


def anchors(path):
    return {slug(line.lstrip("#")) for line, code in parts(open(path, encoding="utf-8").read())
            if not code and re.match("#+ ", line)}


class Pages:
    """The pages that can be reached from README.md, and each link that leads nowhere."""

    def __init__(self):
        self.pages, self.files, self.wrong, queue = [], set(), [], list(START)
        while queue:
            path = queue.pop(0)
            if path in self.pages:
                continue
            self.pages.append(path)
            text = "\n".join("" if code else line for line, code in parts(open(path, encoding="utf-8").read()))
            for _, _, link in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
                target = self.target(path, link)
                if target and target.endswith(".md"):
                    queue.append(target)
                elif target and os.path.isfile(target):
                    self.files.add(target)
        for folder, _, names in os.walk("docs"):
            self.wrong += [f"{folder}/{name}: no page leads here" for name in names
                           if name.endswith(".md") and os.path.join(folder, name) not in self.pages]

    def target(self, path, link):
        """The file that a page's link leads to; None: the web."""
        if re.match("[a-z]+:", link):
            return None
        name, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(target):
            self.wrong.append(f"{path}: there is no {target}")
            return None
        if anchor and target.endswith(".md") and anchor not in anchors(target):
            self.wrong.append(f"{path}: {target} has no heading #{anchor}")
        return target


def place(path):
    """Where a file is on the site."""
    return "index.md" if path == "README.md" else path[5:] if path.startswith("docs/") else "repository/" + path


def converted(pages, path):
    """A page as mkdocs reads it: links between places on the site, code blocks with one word, lists behind an empty line."""
    here, out, before = os.path.dirname(place(path)), [], ""

    def link(match):
        target = pages.target(path, match[3])
        if target is None or match[3].startswith("#"):
            return match[0]
        if target not in pages.pages and target not in pages.files:
            return match[2]  # a folder of sources
        anchor = "#" + match[3].partition("#")[2] if "#" in match[3] else ""
        return f"{match[1]}[{match[2]}]({os.path.relpath(place(target), here or '.')}{anchor})"

    item = re.compile(r"\s*([-*]|\d+\.) ")
    for code, group in itertools.groupby(parts(open(path, encoding="utf-8").read()), lambda part: part[1]):
        text = "\n".join(line for line, _ in group)
        if code:
            out.append(re.sub(r"^(```\w+).*", r"\1", text, flags=re.M))
            continue
        for line in LINK.sub(link, text).split("\n"):
            if item.match(line) and before.strip() and not item.match(before) and not before.startswith(" "):
                out.append("")
            out.append(line.replace("<details>", '<details markdown="1">'))
            before = line
    return "\n".join(out)


def write(pages, folder):
    root = os.path.join(folder, "pages")
    shutil.rmtree(root, ignore_errors=True)
    for path in pages.pages:
        os.makedirs(os.path.dirname(os.path.join(root, place(path))) or root, exist_ok=True)
        with open(os.path.join(root, place(path)), "w", encoding="utf-8") as file:
            file.write(converted(pages, path))
    for path in pages.files:
        os.makedirs(os.path.dirname(os.path.join(root, place(path))), exist_ok=True)
        shutil.copyfile(path, os.path.join(root, place(path)))
    lessons = [p for p in pages.pages if p.startswith("docs/tutorial/")]
    rest = [p for p in pages.pages if p not in lessons and p.startswith("docs/")]
    with open(os.path.join(folder, "mkdocs.yml"), "w", encoding="utf-8") as file:
        file.write("site_name: tandem\ndocs_dir: pages\nsite_dir: html\nuse_directory_urls: false\n"
                   "theme: {name: mkdocs, highlightjs: false}\nplugins: [search]\n"
                   "markdown_extensions: [tables, fenced_code, md_in_html, toc]\nnav:\n- Start: index.md\n")
        for name, group in (("Tutorial", lessons), ("Documents", rest), ("Repository", pages.pages)):
            file.write(f"- {name}:\n" + "".join(f"  - {place(p)}\n" for p in group
                                               if name != "Repository" or place(p).startswith("repository/")))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().split("\n\n")[1])
    pages = Pages()
    if sys.argv[1] != "--check" and not pages.wrong:
        write(pages, sys.argv[1])
    for text in sorted(set(pages.wrong)):
        print(text)
    sys.exit(1 if pages.wrong else 0)


if __name__ == "__main__":
    main()
