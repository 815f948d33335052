"""A run as one HTML file that needs no network."""

from attnlimit.report.html.explain import explanation
from attnlimit.report.html.page import page
from attnlimit.report.html.write import write_report

__all__ = ["explanation", "page", "write_report"]
