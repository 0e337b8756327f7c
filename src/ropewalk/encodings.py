"""Alternatives to RoPE with one interface, `Encoding`: on embeddings, on queries and keys, or on scores."""

from ropewalk.layers.absolute import LearnedAbsolute as LearnedAbsolute
from ropewalk.layers.absolute import NoPE as NoPE
from ropewalk.layers.absolute import Sinusoidal as Sinusoidal
from ropewalk.layers.biases import FIRE as FIRE
from ropewalk.layers.biases import KERPLE as KERPLE
from ropewalk.layers.biases import ALiBi as ALiBi
from ropewalk.layers.biases import RelativeBias as RelativeBias
from ropewalk.layers.biases import T5Bias as T5Bias
from ropewalk.layers.encoding import Encoding as Encoding
from ropewalk.layers.encoding import EncodingConfig as EncodingConfig
from ropewalk.layers.encoding import Places as Places
from ropewalk.layers.encoding import Sizes as Sizes
from ropewalk.layers.encodings import ENCODINGS as ENCODINGS
from ropewalk.layers.encodings import ROPE_NAMES as ROPE_NAMES
from ropewalk.layers.encodings import resolve as resolve
from ropewalk.layers.relative import TransformerXL as TransformerXL
from ropewalk.layers.relative import XPos as XPos
