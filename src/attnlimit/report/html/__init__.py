"""A run as one HTML file that needs no network."""

from attnlimit.report.html.page import page
from attnlimit.report.html.write import write_report

__all__ = ["page", "write_report"]
