"""Live transformers models: our exact tables in their rotary modules, and methods in their attention."""

from __future__ import annotations

from ropewalk.attachment.handle import Attachment, attach, attached, attachment_of

__all__ = ["Attachment", "attach", "attached", "attachment_of"]
