"""What is sent: only files of the package, nothing inline, nothing from elsewhere."""

import re

import pytest

from bitta.server.pages import HEADERS, PAGES


def test_both_pages_and_all_they_load_are_there():
    assert {"/annotate", "/operate", "/static/style.css", "/static/annotate.js"} <= set(PAGES)
    for page in PAGES.values():
        named = re.findall(rb"""(?:from |src=|href=)"(?:\./|static/)([\w.]+)\"""", page.body)
        assert {f"/static/{name.decode()}" for name in named} <= set(PAGES)


def test_only_these_addresses_lead_to_a_file():
    for trick in ("/static/../__init__.py", "/static/", "/static//etc/passwd", "/annotate.html"):
        assert trick not in PAGES
        with pytest.raises(KeyError):
            PAGES[trick]


def test_the_policy_allows_this_host_alone_and_nothing_is_inline():
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    for address in ("/annotate", "/operate"):
        text = PAGES[address].body.decode()
        assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text) == []


def test_no_other_host_is_named_and_no_text_is_parsed_as_markup():
    for address, page in PAGES.items():
        text = page.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|eval\(", text) == [], (
            address
        )


def test_types_are_told_and_tags_change_with_the_content():
    assert PAGES["/annotate"].content_type == "text/html; charset=utf-8"
    assert PAGES["/static/plot.js"].content_type == "text/javascript; charset=utf-8"
    assert PAGES["/static/icon.svg"].content_type == "image/svg+xml"
    assert len({page.etag for page in PAGES.values()}) == len(PAGES)
