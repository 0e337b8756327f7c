"""Texts with hidden numbers and the questions about them: names, wording, chat frames, tasks."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.measure import HAYSTACKS, TASKS
from ropewalk.measure.haystack import Haystack, hide, noise, passage
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need

# Cities name the hidden numbers: none is a part of another, or a common word.
_CITIES = """
Aachen Aalborg Aberdeen Abidjan Abuja Accra Adelaide Agadir Ajaccio Akureyri Albany Aleppo Algiers Alicante
Almaty Amiens Amman Ancona Andorra Ankara Antalya Antwerp Arequipa Arnhem Ashgabat Asmara Astana Asuncion
Atlanta Auckland Augsburg Avignon Badajoz Baghdad Baku Baltimore Bamako Bandung Bangkok Banjul Baoding Barcelona
Basel Basra Beirut Belfast Belgrade Belmopan Bergamo Bergen Berlin Bern Bilbao Birmingham Bishkek Bissau
Blantyre Bogota Boise Bologna Bolzano Bordeaux Boston Brasilia Bratislava Bremen Brescia Brisbane Bristol Brno
Brussels Bucharest Budapest Bursa Busan Bydgoszcz Cadiz Cagliari Cairo Calgary Cambridge Canberra Cancun Caracas
Cardiff Cartagena Casablanca Catania Cayenne Changsha Charleston Chennai Chengdu Chicago Chisinau Cincinnati
Cleveland Cologne Colombo Conakry Copenhagen Cordoba Coventry Cracow Curitiba Cuzco Dakar Dallas Damascus Dayton
Debrecen Delhi Denver Detroit Dhaka Dijon Djibouti Dodoma Doha Dortmund Dover Dresden Dubai Dublin Dunedin
Durban Dushanbe Edinburgh Edmonton Eindhoven Entebbe Erfurt Esztergom Faro Ferrara Florence Fortaleza Frankfurt
Freetown Fresno Fukuoka Funchal Gaborone Galway Gdansk Geneva Genoa Georgetown Ghent Glasgow Gothenburg Granada
Graz Grenoble Groningen Guadalajara Guangzhou Guayaquil Haifa Halifax Hamburg Hangzhou Hanoi Hanover Harare
Harbin Hartford Havana Helsinki Hiroshima Hobart Honolulu Houston Hyderabad Incheon Indianapolis Innsbruck
Ipswich Irkutsk Islamabad Istanbul Izmir Jaipur Jakarta Jerusalem Johannesburg Juba Kabul Kampala Kanpur Karachi
Karlsruhe Kassel Kathmandu Katowice Kaunas Kazan Khartoum Kiel Kigali Kingston Kinshasa Klagenfurt Kobe Kolkata
Kosice Kyoto Lagos Lahore Lausanne Leeds Leicester Leiden Leipzig Libreville Liege Lille Lilongwe Lima Limerick
Linz Lisbon Liverpool Ljubljana Lodz Lome Louisville Luanda Lublin Lucerne Lugano Lusaka Luxor Lyon Maastricht
Macau Madrid Malaga Malmo Manama Managua Manaus Manchester Mandalay Manila Mannheim Maputo Maracaibo Marrakesh
Marseille Maseru Mbabane Medellin Melbourne Memphis Mendoza Merida Messina Miami Milan Milwaukee Minneapolis
Minsk Modena Mogadishu Mombasa Monaco Monrovia Monterrey Montevideo Montpellier Montreal Moroni Moscow Mumbai
Munich Murcia Muscat Nagasaki Nagoya Nairobi Nanjing Nantes Naples Nashville Nassau Newcastle Niamey Nicosia
Norwich Nottingham Nouakchott Novosibirsk Nuremberg Oakland Odense Odessa Okinawa Omaha Oran Orlando Osaka Oslo
Ottawa Ouagadougou Oviedo Oxford Padua Palermo Panama Paramaribo Parma Patras Perth Perugia Philadelphia
Pittsburgh Plovdiv Plymouth Podgorica Poitiers Portland Porto Poznan Prague Pretoria Pristina Pyongyang Quebec
Quito Rabat Raleigh Ravenna Recife Reims Rennes Reykjavik Riga Rimini Rochester Rosario Rostock Rotterdam Rouen
Sacramento Salamanca Salerno Salzburg Samarkand Sapporo Sarajevo Saskatoon Seattle Segovia Sendai Seoul Seville
Shanghai Sheffield Shenzhen Siena Singapore Skopje Sofia Southampton Stavanger Stockholm Strasbourg Stuttgart
Sucre Surabaya Swansea Sydney Szczecin Szeged Tabriz Taipei Tallinn Tampa Tampere Tangier Tartu Tashkent Tbilisi
Tehran Thessaloniki Thimphu Tirana Tokyo Toledo Toronto Toulon Toulouse Trento Trieste Tripoli Tromso Trondheim
Tucson Tulsa Tunis Turin Turku Uppsala Utrecht Vaduz Valencia Valladolid Valparaiso Vancouver Varna Venice
Verona Vienna Vientiane Vilnius Vladivostok Warsaw Wellington Wichita Windhoek Winnipeg Wolfsburg Wroclaw Wuhan
Wuppertal Yangon Yaounde Yerevan Yokohama Zagreb Zanzibar Zaragoza Zurich
"""
NAMES = tuple(_CITIES.split())


Ids = tuple[int, ...]
GROUP = 12
"""Number of questions that share their answers as candidates: chance is 1 in 12."""
MOST = 96
"""Most questions after one text."""
FEWEST = 4
"""Fewest questions; a text that is too short for them raises an error."""
DIGITS = 5
_TRIES = 40
_LINE, _NEAR_END = (
    400,
    40,
)  # characters: a line tokenised again as a whole, and the end of a longer one
_SHARE = 6  # a sixth of the text is needles where that many questions can be asked, less in longer ones
_TEXT = "The text goes here."


def number(rng: Random, digits: int) -> str:
    """Return a number with `digits` digits, the first not 0."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def alike(tokenizer: Tokenizer, count: int, draw: Callable[[], str], *, beside: str = "") -> list[str]:
    """Draw `count` different texts, all with the same number of tokens if at most 40 draws for each give enough.

    Substrings of `beside` are discarded. Raises `RopeError` if there are too few.
    """
    by_tokens: dict[int, list[str]] = defaultdict(list)
    drawn: dict[str, None] = {}
    for _ in range(_TRIES * count):
        text = draw()
        if text in drawn or text in beside:
            continue
        drawn[text] = None
        same = by_tokens[len(tokenizer.encode(f" {text}"))]
        same.append(text)
        if len(same) == count:
            return same
    if len(drawn) < count:
        raise RopeError(
            "retrieval: the text already contains too many of the numbers or names to hide in it.",
            facts={"wanted": count, "drawn and not in the text": len(drawn)},
            cure='Pass a text with fewer of them, or the haystack "noise".',
        )
    return list(drawn)[:count]


def draw_names(names: Sequence[str], count: int, text: str, rng: Random) -> list[str]:
    """Draw `count` different names that are not substrings of the text.

    Raises `RopeError` if there are too few.

    >>> draw_names(("Oslo", "Paris"), 1, "She came from Paris.", Random(0))
    ['Oslo']
    """
    unheld = [name for name in names if name not in text]
    if len(unheld) < count:
        raise RopeError(
            "retrieval: the text already contains too many of the names of hidden numbers.",
            facts={"wanted": count, "names not in the text": len(unheld)},
            cure='Pass a different text, or the haystack "noise".',
        )
    return rng.sample(unheld, count)


@dataclasses.dataclass(frozen=True)
class Wording:
    """The texts that hide a number and ask for it, with {name} and {value}.

    - `ask`: the question; only a chat uses it if `asks` is False. `lead`: the beginning of the answer.
    - `head`: the beginning of the text.
    """

    needle: str
    lead: str
    ask: str
    head: str = ""
    asks: bool = True

    def question(self, name: str) -> str:
        """Return the question and the beginning of its answer."""
        return f"{self.ask} {self.lead}".format(name=name) if self.asks else self.lead.format(name=name)


NUMBERS = Wording(
    needle="The number of {name} is {value}.",
    lead="The number of {name} is",
    ask="What is the number of {name}?",
    asks=False,
)
"""The wording that small models answer best: 18 of 24 questions, where four others have 9 to 16."""
PASS_KEYS = Wording(
    needle="The pass key of {name} is {value}. Remember it. {value} is the pass key of {name}.",
    lead="The pass key of {name} is",
    ask="What is the pass key of {name}?",
    head=(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.\n"
    ),
)
"""After Mohtashami and Jaggi 2023 (arXiv:2305.16300); Chen et al. 2023, section 3.4 (arXiv:2306.15595)."""


class Frame(NamedTuple):
    """The strings before the text, and between a question and the beginning of its answer; None: no chat.

    >>> from ropewalk.measure.questions import NUMBERS
    >>> Frame().question(NUMBERS, "Oslo"), Frame("<user>", "<model>").question(NUMBERS, "Oslo")
    ('The number of Oslo is', 'What is the number of Oslo?<model>The number of Oslo is')
    """

    before: str = ""
    between: str | None = None

    def question(self, wording: Wording, name: str) -> str:
        """Return the question and the beginning of its answer, as they follow the text."""
        if self.between is None:
            return wording.question(name)
        return f"{wording.ask.format(name=name)}{self.between}{wording.lead.format(name=name)}"


PLAIN = Frame()
"""No chat."""


def chat_frame(tokenizer: Tokenizer) -> Frame:
    """Return the frame of the tokenizer's chat template around one user message; it runs in jinja2's sandbox.

    Raises `RopeError` if there is no template, or if it changes the message.
    """
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        raise RopeError(
            "retrieval: the model has no chat template.",
            facts={"tokenizer": type(tokenizer).__name__},
            cure="Leave the chat out: the questions are then asked as plain text.",
        )
    sandbox = need("jinja2.sandbox", extra="doctor").ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message: str) -> None:
        raise need("jinja2", extra="doctor").TemplateError(message)

    sandbox.globals["raise_exception"] = refuse
    special = {
        f"{name}_token": "" if token is None else tokenizer.tokenizer.id_to_token(token)
        for name, token in (("bos", tokenizer.bos_id), ("eos", next(iter(tokenizer.eos_ids), None)))
    }
    messages = [{"role": "user", "content": _TEXT}]
    try:
        text = sandbox.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
        before, between = text.split(_TEXT)
    except Exception as error:  # a template may raise anything
        raise RopeError(
            "retrieval: the model's chat template cannot frame a message.",
            facts={"error": f"{type(error).__name__}: {error}"},
            cure="Leave out the chat, to ask the questions as plain text.",
        ) from error
    return Frame(before, between)


class Wanted(NamedTuple):
    """One expected answer: candidate `answer` against the candidates `others`.

    - `depth`: the fraction of the text before its needle. `distance`: tokens from the beginning of its needle to the
      end of the question.
    """

    answer: int
    others: tuple[int, ...]
    depth: float
    distance: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """The tokens after the text (possibly none), and the candidates that may follow.

    `candidates` are numbers that identify candidates in all questions of a text. `continuations` are their token ids
    after this question.
    """

    input_ids: Ids
    candidates: tuple[int, ...]
    continuations: tuple[Ids, ...]
    wanted: tuple[Wanted, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A text as token ids, which the model processes once, and the questions after it."""

    input_ids: Ids
    questions: tuple[Question, ...]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the text with the longest question and candidate; frequencies use it."""
        return len(self.input_ids) + max(
            len(one.input_ids) + max(map(len, one.continuations)) for one in self.questions
        )

    def cropped(self, tokens: int) -> QuestionSet:
        """Keep only the text's end: at most `tokens` tokens, including the longest question and candidate."""
        kept = max(1, tokens - (self.tokens - len(self.input_ids)))
        return dataclasses.replace(self, input_ids=self.input_ids[-kept:])


class Hidden(NamedTuple):
    """An answer in a draft: its candidate's number, the numbers of its rivals, and the needle's first character."""

    answer: int
    others: tuple[int, ...]
    needle: int


class QuestionText(NamedTuple):
    """A question in a draft: its text, the numbers of its candidates, and its possible answers."""

    text: str
    candidates: tuple[int, ...]
    hidden: tuple[Hidden, ...]


class QuestionDraft(NamedTuple):
    """A set of questions as text; `body` is the first and last character of the filler with its needles."""

    text: str
    body: tuple[int, int]
    candidates: tuple[str, ...]
    questions: tuple[QuestionText, ...]


def ask_after(tokenizer: Tokenizer, draft: QuestionDraft) -> QuestionSet:
    """Return the draft as token ids.

    The common prefix of all questions belongs to the text, and the common prefix of a question's candidates to the
    question.
    """
    ids = tokenizer.encode_prompt(draft.text)
    kept, tails = continued(tokenizer, draft.text, ids, _tails(draft))
    same = shared_prefix(tails)
    token_at, rows = places(tokenizer, draft.text, len(ids)), iter(tails)
    first, last = (token_at(character) for character in draft.body)
    questions = []
    for question in draft.questions:
        of_question = [next(rows)[same:] for _ in question.candidates]
        begin = shared_prefix(of_question)
        end = kept + same + begin
        wanted = []
        for hidden in question.hidden:
            place = token_at(hidden.needle)
            depth = (place - first) / max(1, last - first)
            wanted.append(Wanted(hidden.answer, hidden.others, depth, end - place))
        questions.append(
            Question(
                input_ids=tuple(of_question[0][:begin]),
                candidates=question.candidates,
                continuations=tuple(tuple(row[begin:]) for row in of_question),
                wanted=tuple(wanted),
            )
        )
    return QuestionSet(input_ids=(*ids[:kept], *tails[0][:same]), questions=tuple(questions))


def _tails(draft: QuestionDraft) -> list[str]:
    return [
        f"{question.text} {draft.candidates[number]}" for question in draft.questions for number in question.candidates
    ]


def fill_text(tokenizer: Tokenizer, length: int, render: Callable[[int], QuestionDraft], *, task: str) -> QuestionSet:
    """Return the set with the most filler for which text, question and candidate always fit into `length` tokens."""
    bare = render(0)
    kept, tails = continued(tokenizer, bare.text, tokenizer.encode_prompt(bare.text), _tails(bare))
    after = max(map(len, tails)) + kept - len(tokenizer.encode_prompt(bare.text))

    def size(count: int) -> int:
        return len(tokenizer.encode_prompt(render(count).text)) + after

    count = fill(length, size, task=task)
    while (found := ask_after(tokenizer, render(count))).tokens > length and count:
        count -= 1  # if the end of the filler and the questions are tokenised together
    return found


def how_many(length: int, tokens: int, *, group: int = GROUP, most: int = MOST, task: str) -> int:
    """Return the number of questions for a text of `length` tokens if each needle has `tokens` tokens.

    It is a multiple of the group size or less than one group, and at most `most`. Raises `RopeError` if too few fit.

    >>> how_many(16_384, 13, task="numbers"), how_many(2048, 13, task="numbers"), how_many(512, 13, task="numbers")
    (96, 24, 6)
    """
    fitting, fewest = min(length // (_SHARE * tokens), most), min(FEWEST, group)
    if fitting >= group:
        return fitting - fitting % group
    if fewest * tokens > length // 2:
        raise RopeError(
            f"retrieval: `{task}` does not fit into this length.",
            facts={"length": length, "tokens needed": 2 * fewest * tokens},
            cure="Ask for longer inputs, or leave this task out.",
        )
    return max(fitting, fewest)


def groups_of(count: int, size: int) -> list[list[int]]:
    """Return the numbers 0 .. count - 1 in groups of about `size`, each spread over the whole range.

    >>> groups_of(6, 3)
    [[0, 2, 4], [1, 3, 5]]
    """
    groups = max(1, count // size)
    return [list(range(first, count, groups)) for first in range(groups)]


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """Return the number of leading tokens that all rows share.

    >>> shared_prefix([[1, 2, 3], [1, 2, 4, 5]])
    2
    """
    columns = zip(*rows, strict=False)
    return next((index for index, column in enumerate(columns) if len(set(column)) > 1), min(map(len, rows)))


def places(tokenizer: Tokenizer, text: str, tokens: int) -> Callable[[int], int]:
    """Return a function that maps a character of a text with `tokens` tokens to its token."""
    ends = [end for _, end in tokenizer.tokenizer.encode(text, add_special_tokens=False).offsets]
    before = tokens - len(ends)
    return lambda character: before + bisect_right(ends, character)


def fill(length: int, size: Callable[[int], int], *, task: str) -> int:
    """Return the largest number of filler units for which `size`, in tokens, is at most `length`.

    Raises `RopeError` if nothing fits.
    """
    low, low_size = 0, size(0)
    smallest = low_size
    if low_size > length:
        raise RopeError(
            f"retrieval: `{task}` does not fit into this length.",
            facts={"length": length, "tokens needed": low_size},
            cure="Ask for longer inputs, or leave this task out.",
        )
    high, per_unit, step = length + 1 - smallest, 2.0, 0
    while high - low > 1 and low_size < length:
        step += 1  # the size grows almost evenly, so a straight line finds it; halving now and then bounds the steps
        guess = low + int((length - low_size) / per_unit) if step % 4 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        found = size(middle)
        per_unit = max(1.0, (found - smallest) / middle)
        if found <= length:
            low, low_size = middle, found
        else:
            high = middle
    return low


def continued(tokenizer: Tokenizer, text: str, ids: list[int], tails: Sequence[str]) -> tuple[int, list[list[int]]]:
    """Return the number of the text's `ids` that no tail changes, and each tail's ids after those.

    Only the end of the text is tokenised again, from the start of a line or word, if it has the same tokens as in the
    text. A mark that some tokenizers put before every text is ignored.
    """
    end = text[_cut(text) :]
    of_end = tokenizer.encode(end)
    begin = next((mark for mark in (0, 1) if of_end[mark:] and ids[mark - len(of_end) :] == of_end[mark:]), None)
    if begin is not None:
        rows = [tokenizer.encode(end + tail) for tail in tails]
        same = shared_prefix([of_end, *rows])
        if same > begin:
            return len(ids) - len(of_end) + same, [row[same:] for row in rows]
    rows = [tokenizer.encode_prompt(text + tail) for tail in tails]
    same = shared_prefix([ids, *rows])
    return same, [row[same:] for row in rows]


def _cut(text: str) -> int:
    """Return the start of the last line, including the break before it; in a long line, of a word near its end."""
    line = text.rfind("\n", 0, len(text) - 1)
    if line >= len(text) - _LINE:
        return line if line >= 0 else 0
    return max(0, text.rfind(" ", 0, len(text) - _NEAR_END))


@dataclasses.dataclass(frozen=True)
class HiddenNumbers:
    """Make texts with evenly spread numbers named after cities, and questions after the text for each city's number.

    The candidates of a question are the numbers of its group of cities. Their count is what fits into a text of
    `shortest` tokens, so chance is the same at every length.
    """

    name: str
    haystack: Haystack
    wording: Wording
    frame: Frame = PLAIN
    shortest: int | None = None

    def make(self, tokenizer: Tokenizer, length: int, rng: Random) -> QuestionSet:
        """Return a text that fits into `length` tokens with any question and candidate."""
        start, wording = rng.randrange(len(self.haystack.units)), self.wording
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        sample = " ".join(wording.needle.format(name=name, value=10 ** (DIGITS - 1)) for name in NAMES[:10])
        tokens = -(-len(tokenizer.encode(f" {sample}")) // 10)
        size = min(GROUP, how_many(self.shortest or length, tokens, task=self.name))
        count = how_many(length, tokens, group=size, task=self.name)
        groups, names = groups_of(count, size), draw_names(NAMES, count, filler, rng)
        numbers = alike(tokenizer, count, lambda: number(rng, DIGITS), beside=filler)
        hidden = [
            ((place + rng.random()) / count, wording.needle.format(name=names[place], value=numbers[place]))
            for place in range(count)
        ]
        head = f"{self.frame.before}{wording.head}"

        def render(units: int) -> QuestionDraft:
            placed = hide(self.haystack.take(start, units), hidden, self.haystack.glue)
            text = f"{head}{placed.text}\n"
            asked = tuple(
                QuestionText(
                    self.frame.question(wording, names[city]),
                    tuple(group),
                    (Hidden(city, tuple(one for one in group if one != city), len(head) + placed.starts[city]),),
                )
                for group in groups
                for city in group
            )
            return QuestionDraft(text, (len(head), len(text) - 1), tuple(numbers), asked)

        return fill_text(tokenizer, length, render, task=self.name)


def make_tasks(
    names: Sequence[str],
    text: str,
    *,
    haystack: str | None = None,
    frame: Frame | None = None,
    shortest: int | None = None,
) -> tuple[HiddenNumbers, ...]:
    """Return the tasks with these names, which hide their numbers in passages of `text` or in noise.

    **Arguments:**
    - `names`: from `TASKS`.
    - `haystack`: "noise" (five repeated sentences) or "text"; None: noise for `passkey`, text for `numbers`.
    - `frame`: of a chat, around the questions; None: plain text. `shortest`: the shortest length in tokens, which
      limits the number of candidates at every length.

    **Raises:** `RopeError` for unknown names or a text without words.

    >>> [task.name for task in make_tasks(["passkey", "numbers"], "some words here")]
    ['passkey', 'numbers']
    """
    for unknown in [name for name in names if name not in TASKS]:
        raise RopeError("retrieval: unknown task.", facts={"task": unknown}, cure=f"Choose from {', '.join(TASKS)}.")
    if haystack not in (None, *HAYSTACKS):
        raise RopeError(
            "retrieval: unknown haystack.",
            facts={"haystack": haystack},
            cure=f"Choose a haystack from {', '.join(HAYSTACKS)}.",
        )
    prose, chat = passage(text), frame or PLAIN
    filler = {
        "numbers": noise() if haystack == "noise" else prose,
        "passkey": prose if haystack == "text" else noise(),
    }
    wordings = {"numbers": NUMBERS, "passkey": PASS_KEYS}
    return tuple(HiddenNumbers(name, filler[name], wordings[name], frame=chat, shortest=shortest) for name in names)
