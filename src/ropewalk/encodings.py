"""Alternatives to RoPE with one interface, `Encoding`: on embeddings, on queries and keys, or on scores."""

from ropewalk.models.encoding import Encoding as Encoding
from ropewalk.models.encoding import EncodingConfig as EncodingConfig
from ropewalk.models.encoding import Places as Places
from ropewalk.models.encoding import Sizes as Sizes
from ropewalk.models.encodings import ENCODINGS as ENCODINGS
from ropewalk.models.encodings import FIRE as FIRE
from ropewalk.models.encodings import KERPLE as KERPLE
from ropewalk.models.encodings import ROPE_NAMES as ROPE_NAMES
from ropewalk.models.encodings import ALiBi as ALiBi
from ropewalk.models.encodings import LearnedAbsolute as LearnedAbsolute
from ropewalk.models.encodings import NoPE as NoPE
from ropewalk.models.encodings import RelativeBias as RelativeBias
from ropewalk.models.encodings import Sinusoidal as Sinusoidal
from ropewalk.models.encodings import T5Bias as T5Bias
from ropewalk.models.encodings import TransformerXL as TransformerXL
from ropewalk.models.encodings import XPos as XPos
from ropewalk.models.encodings import resolve as resolve
