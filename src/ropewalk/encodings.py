"""Alternatives to RoPE with one interface, `Encoding`: on embeddings, on queries and keys, or on scores."""

from ropewalk.layers.encoding import Encoding as Encoding
from ropewalk.layers.encoding import EncodingConfig as EncodingConfig
from ropewalk.layers.encoding import Places as Places
from ropewalk.layers.encoding import Sizes as Sizes
from ropewalk.layers.encodings import ENCODINGS as ENCODINGS
from ropewalk.layers.encodings import FIRE as FIRE
from ropewalk.layers.encodings import KERPLE as KERPLE
from ropewalk.layers.encodings import ROPE_NAMES as ROPE_NAMES
from ropewalk.layers.encodings import ALiBi as ALiBi
from ropewalk.layers.encodings import LearnedAbsolute as LearnedAbsolute
from ropewalk.layers.encodings import NoPE as NoPE
from ropewalk.layers.encodings import RelativeBias as RelativeBias
from ropewalk.layers.encodings import Sinusoidal as Sinusoidal
from ropewalk.layers.encodings import T5Bias as T5Bias
from ropewalk.layers.encodings import TransformerXL as TransformerXL
from ropewalk.layers.encodings import XPos as XPos
from ropewalk.layers.encodings import resolve as resolve
