"""Files of the pages: addresses, types, policy, no inline scripts."""

import re

import pytest

from bitta.server.pages import HEADERS, PAGES


def test_pages_and_the_files_they_load_exist():
    assert {"/annotate", "/operate", "/static/style.css", "/static/annotate.js"} <= set(PAGES)
    for page in PAGES.values():
        named = re.findall(rb"""(?:from |src=|href=)"(?:\./|static/)([\w.]+)\"""", page.body)
        assert {f"/static/{name.decode()}" for name in named} <= set(PAGES)


def test_other_addresses_have_no_file():
    for trick in ("/static/../__init__.py", "/static/", "/static//etc/passwd", "/annotate.html"):
        assert trick not in PAGES
        with pytest.raises(KeyError):
            PAGES[trick]


def test_policy_allows_only_this_host_and_pages_have_nothing_inline():
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    for address in ("/annotate", "/operate"):
        text = PAGES[address].body.decode()
        assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text) == []


def test_files_name_no_other_host_and_parse_no_html():
    for address, page in PAGES.items():
        text = page.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|eval\(", text) == [], (
            address
        )


def test_files_have_content_types_and_distinct_etags():
    assert PAGES["/annotate"].content_type == "text/html; charset=utf-8"
    assert PAGES["/static/plot.js"].content_type == "text/javascript; charset=utf-8"
    assert PAGES["/static/icon.svg"].content_type == "image/svg+xml"
    assert len({page.etag for page in PAGES.values()}) == len(PAGES)
