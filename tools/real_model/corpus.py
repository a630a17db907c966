"""200 kB of text to tokenize: this repository's code and Markdown, sentences of many languages, and random words of many scripts."""

import random
import unicodedata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = 49
CODE_BYTES, MARKDOWN_BYTES, SCRIPT_BYTES = 70_000, 40_000, 90_000
# Each part is encoded by itself: differences are local, and no part is longer than a context.
PART_BYTES = 4_000
CODE = ("src/**/*.rs", "kernels/*.cu", "tools/**/*.py", "config/*.toml", "tests/fixtures/models/*/config.json", "src/server/build.rs")
MARKDOWN = ("*.md", "docs/*.md", "tools/*.md")

# The first article of the Universal Declaration of Human Rights.
SENTENCES = [
    "All human beings are born free and equal in dignity and rights.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Minden emberi lény szabadon születik és egyenlő méltósága és joga van.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama.",
    "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
    "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "የሰው ልጅ ሁሉ ሲወለድ ነፃና በክብርና በመብትም እኩልነት ያለው ነው።",
    "မနုၐၝ အားလုံး လွတ်လပ်ပြီး တူညီသော ဂုဏ်သိက္ခာ ရှိသည်။",
]
SCRIPTS = [
    "a-z A-Z", "a-z à-ÿ", "α-ω", "а-я А-Я", "א-ת", "ء-ي ٠-٩", "अ-ह ०-९", "ก-ฮ", "一-龥", "ぁ-ゖ", "ァ-ヺ", "가-힣", "ა-ჰ", "ա-ֆ", "0-9", "!-/ :-@ [-` {-~",
    "😀-🙏", "🌀-🌟", "←-⇿", "∀-⋿",
]
BLANKS = [" "] * 6 + ["  ", "   ", "    ", "        ", " " * 23, " " * 50, "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\n    ", "\n\t\t", " \n ", "\r\n"]
PIECES = [
    "I've", "don't", "WE'LL", "he'S", "3.14159", "1234567", "12,345.67", "a_b-c", "camelCaseWord", "HTTPServer2", "x != y", "//", "/* … */", "https://example.org/?q=%20&x=1#y",
    "user@example.org", "</div>", "<td>", "**bold**", "- [ ]", "`code`", "```python", "|---|---|", "# Title", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "Ω≈ç√∫", "½²³", "№5", "“quoted”", "…", "—",
]


def files(patterns, wanted):
    """The beginnings of files in turn, so that all kinds of them are there."""
    lists = [sorted(REPOSITORY.glob(pattern)) for pattern in patterns]
    texts, size = [], 0
    for turn in range(max(map(len, lists))):
        for paths in lists:
            if turn < len(paths) and size < wanted:
                text = paths[turn].read_text()[: PART_BYTES * 2]
                texts.append(text)
                size += len(text.encode())
    return "".join(texts).encode()[:wanted].decode(errors="ignore")


def letters(ranges):
    """The characters of ranges like `a-z A-Z`."""
    return [chr(code) for part in ranges.split() for code in range(ord(part[0]), ord(part[-1]) + 1)]


def scripts(markers):
    """Sentences, random words, pieces and markers (some of them cut off) between blanks of all kinds."""
    rng, alphabets = random.Random(SEED), [letters(ranges) for ranges in SCRIPTS]
    texts, size = [], 0
    while size < SCRIPT_BYTES:
        kind = rng.random()
        if kind < 0.12:
            text = rng.choice(SENTENCES)
        elif kind < 0.75:
            text = "".join(rng.choices(rng.choice(alphabets), k=rng.randint(1, 9)))
        elif kind < 0.95 or not markers:
            text = rng.choice(PIECES)
        else:
            text = rng.choice(markers)
            text = text[: rng.randint(1, len(text))] if rng.random() < 0.3 else text
        text += rng.choice(BLANKS) if rng.random() < 0.85 else ""
        texts.append(text)
        size += len(text.encode())
    return "".join(texts)


def parts(markers):
    """The whole text in parts, composed (NFC), which some models do first and llama.cpp never does.

    U+2581, SentencePiece's character for a space, is left out: llama.cpp does not treat it as a space.
    """
    text = files(CODE, CODE_BYTES) + files(MARKDOWN, MARKDOWN_BYTES) + scripts(markers)
    text = unicodedata.normalize("NFC", text.replace("\u2581", ""))
    start, result = 0, []
    while start < len(text):
        end = start + len(text[start : start + PART_BYTES].encode()[:PART_BYTES].decode(errors="ignore"))
        result.append(text[start:end])
        start = end
    return result
