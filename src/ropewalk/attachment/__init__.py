"""Attach exact tables and extension methods to live transformers models."""

from __future__ import annotations

from ropewalk.attachment.handle import Attachment, attach, attachment_of

__all__ = ["Attachment", "attach", "attachment_of"]
