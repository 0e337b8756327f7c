"""Attach exact tables and extension methods to live transformers models."""

from __future__ import annotations

from ropewalk.attachment.handle import Attachment, attach, attached, attachment_of

__all__ = ["Attachment", "attach", "attached", "attachment_of"]
