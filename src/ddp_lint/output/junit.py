"""JUnit XML: a test suite a file, a failed test case a finding, an error where a file could not be checked."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

from ddp_lint.output import Run, in_file, in_lines

#: What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(run: Run) -> str:
    root = ET.Element("testsuites", name="ddp-lint")
    for path, findings in itertools.groupby(run.findings, key=lambda f: f.span.path):
        suite = ET.SubElement(root, "testsuite", name=_text(path))
        for f in findings:
            case = ET.SubElement(suite, "testcase", name=f"{f.code} {f.slug}", classname=_text(path))
            case.set("file", _text(path))
            case.set("line", str(in_file(f.span).line))
            failure = ET.SubElement(case, "failure", message=_text(f.message), type=f.code)
            failure.text = _text(in_lines(f, f"{f.span.place}:{f.span.line}:{f.span.column}: {f.message}"))
        _count(suite)
    for path, reason in run.errors:
        suite = ET.SubElement(root, "testsuite", name=_text(path))
        case = ET.SubElement(suite, "testcase", name="cannot be checked", classname=_text(path))
        ET.SubElement(case, "error", message=_text(reason))
        _count(suite)
    if not len(root):  # some readers take an empty report for a broken one
        ET.SubElement(ET.SubElement(root, "testsuite", name="ddp-lint"), "testcase", name="no findings")
        _count(root[0])
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
