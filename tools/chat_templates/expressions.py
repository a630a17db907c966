"""Writes tests/fixtures/chat_templates/expressions.jsonl: some hundred expressions and templates with jinja2's results.

Run: python expressions.py ../../tests/fixtures/chat_templates/expressions.jsonl (needs jinja2 3.1.6).
"""

import json
import sys

from environment import render

VARIABLES = {
    "s": "Hello, World",
    "blank": "  a  b \t c\n",
    "u": "Ünïcödé ß ﬁ ǆ 日本 😀",
    "quotes": "it's \"so\"\\n\n\t\x00\x7f\u00a0é",
    "digits": "0042",
    "html": "<a href=\"x\">T & 'q'</a>",
    "lines": "one\ntwo\r\n\nthree\x0bfour",
    "n": 42,
    "neg": -7,
    "f": 2.5,
    "big": 123456789012345678901234567890,
    "huge": 10**40,
    "t": True,
    "nothing": None,
    "l": [3, 1, 2],
    "words": ["b", "A", "c", "B"],
    "d": {"b": 1, "a": [1, {"x": None}], "items": 5, "C": "z"},
    "e": {},
    "rows": [
        {"name": "b", "n": 2, "in": {"k": "x"}},
        {"name": "A", "n": 1, "in": {"k": "y"}},
        {"name": "a", "n": 2, "in": {"k": "x"}},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}

EXPRESSIONS = r"""
s.capitalize()
'éCOLE ß'.capitalize()
''.capitalize()
'ﬁne'.capitalize()
u.casefold()
s.center(20)
s.center(21, '*')
'ab'.center(5, '-')
'a'.center(4, '-')
s.center(3)
s.center(20, 'ab')
s.count('l')
s.count('l', 4)
s.count('l', -3, -1)
s.count('')
''.count('')
s.count('x', 99)
s.encode()
s.encode('utf-8')
u.encode('ascii', 'ignore')
u.encode('ascii')
u.encode('latin-1', 'replace')
s.encode().decode()
u.encode()[:3]
s.endswith('World')
s.endswith(('x', 'ld'))
s.endswith('Hello', 0, 5)
s.endswith(['ld'])
'a\tbc\td'.expandtabs()
'a\tbc\td'.expandtabs(4)
'a\tbc\td'.expandtabs(tabsize=2)
'a\n\tb'.expandtabs(0)
s.find('o')
s.find('o', 5)
s.find('o', 5, 8)
s.find('zz')
u.find('日')
s.rfind('o')
s.rfind('o', 0, 5)
s.index('W')
s.index('zz')
s.rindex('o')
s.rindex('zz')
'{} {}'.format(1, 'a')
'{1} {0}'.format(1, 'a')
'{a} {b!r} {c!s}'.format(a=1, b='x', c=None)
'{0[a]} {1.x}'.format({'a': 1}, {'x': 2})
'{:>8}|{:<8}|{:^8}|{:*^9}'.format('a', 'b', 'c', 'd')
'{:05d} {:+d} {: d} {:,} {:_}'.format(42, 42, 42, 1234567, 1234567)
'{:x} {:X} {:#x} {:b} {:#b} {:o} {:c}'.format(255, 255, 255, 5, 5, 8, 65)
'{:.2f} {:.0f} {:e} {:E} {:g} {:G} {:%} {:.1%}'.format(3.14159, 2.5, 12345.678, 12345.678, 0.00001234, 1e20, 0.5, 0.256)
'{:10.3f}|{:<10.3f}|{:010.3f}|{:+.1f}'.format(3.14159, 3.14159, -3.14159, 2.25)
'{:.3} {:.3}'.format('abcdef', 3.14159)
'{:{}}|'.format('a', 5)
'{:{w}.{p}f}|'.format(3.14159, w=8, p=2)
'{{}} {}'.format(1)
'{'.format(1)
'}'.format(1)
'{} {}'.format(1)
'{0} {}'.format(1, 2)
'{!x}'.format(1)
'{:d}'.format('a')
'{:s}'.format(1)
'{} {} {}'.format([1, 'a'], {'k': 1.0}, (1,))
'{:>5}'.format(true)
'{:,}'.format(1234567.891)
'{:,.2f}'.format(1234567.891)
'{:08,d}'.format(1234)
'{:.2e}'.format(0)
'{}'.format(big)
'{:,}'.format(big)
'{:n}'.format(1234)
'{:5}|{:<5}|{:^5}'.format(42, 42, 42)
'{:=+8d}'.format(42)
'{:>08.2f}'.format(1.5)
'{:.3g} {:.10g} {:#.3g}'.format(1234.5, 0.1, 1.0)
'{:.1} {:.2}'.format(123.0, 1.0)
'{a}'.format_map({'a': 3})
'{a.__class__}'.format(a=1)
'abc123'.isalnum()
'abc 123'.isalnum()
''.isalnum()
'abcß日'.isalpha()
'ab1'.isalpha()
'abc'.isascii()
u.isascii()
''.isascii()
'123'.isdecimal()
'²'.isdecimal()
'²3'.isdigit()
'½'.isdigit()
'½五Ⅷ'.isnumeric()
'1.5'.isnumeric()
'٣'.isdecimal()
'a_1'.isidentifier()
'1a'.isidentifier()
'abc1'.islower()
'Abc'.islower()
'1'.islower()
'ABC!'.isupper()
'ABc'.isupper()
'Hello World'.istitle()
'Hello world'.istitle()
'HELLO'.istitle()
''.istitle()
' \t\n'.isspace()
''.isspace()
'a b'.isprintable()
'a\nb'.isprintable()
', '.join(['a', 'b'])
', '.join('abc')
', '.join([])
', '.join([1])
', '.join(d)
'ab'.ljust(5) ~ '|'
'ab'.ljust(5, '.')
'ab'.rjust(5, '.')
'ab'.rjust(1)
u.lower()
'ΑΣ'.lower()
'İ'.lower()
u.upper()
blank.strip()
blank.lstrip()
blank.rstrip()
'xxabcxx'.strip('x')
'xyabcyx'.strip('xy')
'xxabcxx'.lstrip('x')
'xxabcxx'.rstrip('x')
'xx'.strip(none)
'\x1ca\x1f'.strip()
'\u200ba'.strip()
s.partition(', ')
s.partition('x')
s.rpartition('o')
s.rpartition('x')
s.partition('')
'TestHook'.removeprefix('Test')
'TestHook'.removeprefix('x')
'TestHook'.removesuffix('Hook')
'TestHook'.removesuffix('')
s.replace('l', 'L')
s.replace('l', 'L', 2)
s.replace('', '-')
s.replace('', '-', 3)
s.replace('l', '', -1)
s.split(',')
s.split()
blank.split()
blank.split(none, 1)
blank.split(' ')
'a,b,c'.split(',', 1)
'a,b,c'.split(',', maxsplit=1)
'a,b,c'.split(sep=',')
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',')
blank.rsplit(none, 1)
blank.rsplit(maxsplit=1)
'a b  c'.split(maxsplit=0)
' a b '.rsplit(none, 0)
''.split()
''.split(',')
s.split('')
lines.splitlines()
lines.splitlines(true)
lines.splitlines(keepends=True)
'a\n'.splitlines()
''.splitlines()
s.startswith('Hell')
s.startswith(('x', 'He'))
s.startswith('World', 7)
s.startswith(1)
s.swapcase()
'ß'.swapcase()
"hello wOrld's x-y".title()
u.title()
digits.zfill(8)
'-42'.zfill(6)
'+4'.zfill(2)
'abc'.zfill(5)
'abc'.translate({97: 'x', 98: none})
'abc'.translate('abc'.maketrans('ab', 'xy'))
'abc'.maketrans('ab', 'xy', 'c')
s.upper
s.nope
s.nope is defined
s.upper is defined
s.upper()[0:3]
s.center(width=3)
s.split(1)
s.replace('a')
s.upper(1)
'abc'[0]
'abc'[-1]
'abc'[5]
'abc'[1:]
'abc'[:-1]
'abc'[::-1]
'abcdef'[::2]
'abcdef'[4:1:-1]
'abcdef'[-2:]
'abcdef'[10:]
'abcdef'[-10:2]
'abcdef'[::0]
'abcdef'[1:5:2]
'abcdef'[5:0:-2]
'abcdef'[:0:-1]
u[0:7]
u[-1]
l[::-1]
l[1:]
l[-1]
l[5]
l[-4]
l[::2]
l['0']
l.0
l[1.0]
l[true]
(1, 2, 3)[1:]
range(10)[2:8:3]
range(10)[-1]
range(5)
range(1, 10, 3)
range(10, 0, -3) | list
range(0)|list
range(3) | length
range(200000)
range(1, 2, 0)
5 in range(10)
[1, 2] + [3]
[1, 2] * 2
2 * [1]
(1, 2) + (3,)
(1,) * 3
'ab' * 3
3 * 'ab'
'ab' * -1
'a' + 'b'
'a' + 1
1 + 'a'
[1] + (2,)
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1]
1 + 2
1 - 2
3 * 4
7 / 2
6 / 2
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 // 2
7.5 % 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 0.5
-2 ** 2
2 ** 3 ** 2
2 ** 100
10 ** 20
1 / 0
1 // 0
1 % 0
1.0 / 0
0.1 + 0.2
1e16
1e15
1e-5
0.0001
1.0
100.0
1e100
1.5e300 * 1e10
-0.0
3.0 * 2
1e308 * 10
5 - 5.0
true + true
true * 3
-true
+true
not 1
not none
1 and 2
0 and 2
1 or 2
0 or ''
none or 'x'
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
'1' == 1
none == false
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
'a' < 'b'
[1, 2] < [1, 3]
1 < 'a'
none < 1
[] < [1]
'a' in 'abc'
'a' not in 'abc'
1 in [1, 2]
'a' in d
1 in 'abc'
1 in 5
none in [none]
x in [1]
1 in x
1 if true else 2
1 if false else 2
1 if false
(1 if false) is defined
123456789012345678901234567890
123456789012345678901234567890 + 1
123456789012345678901234567890 * 123456789012345678901234567890
big
big + 1
big // 7
big % 7
big / 2
-big
big == 123456789012345678901234567890
big > 1
big > 1e10
big | tojson
huge | tojson
huge
[big] | tojson
{'a': big}
big | string
big | int
big | float
big | abs
big is integer
big is number
9223372036854775807
9223372036854775808
-9223372036854775808
9223372036854775807 + 1
18446744073709551616 | tojson
2 ** 64
10 ** 5000
10 ** 10000000
0x1F
0b101
0o17
1_000_000
1_0.5
'12345678901234567890123' | int
'12345678901234567890123' | int + 1
12345678901234567890.0
1e22
123456789.123456789
none
true
false
None
True
[1, 'a', none, true, 1.5]
['it\'s', "say \"x\"", 'both \' "']
{'a': 1, 'b': [none, 'x']}
{1: 'a', none: 2, true: 3}
{1: 'a', 1.0: 'b', true: 'c'}
{}
[]
()
(1,)
(1, 2)
1, 2
{'a': {'b': {'c': []}}}
[quotes]
quotes
[u]
['\u200b\u2028\ue000\U0001F600']
[1e16, 0.1, 1.0]
'\x41\u00e9\U0001F600\101\n\t\\ \' \" \q'
"a\
b"
'a' 'b' "c"
'\N{DASH}'
d.a
d['a']
d.items
d['items']
d.items()
d.items() | list
d.keys()
d.values()
d.keys() | list
d.values() | list
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get('b', default=1)
d.copy()
d.copy() == d
d.pop('b')
d.update({'x': 1})
d.setdefault('q', 1)
d.clear()
d.nope
d.nope.more
d['nope']
d.nope is defined
d.a[1].x
d.a.1.x
d.fromkeys(['a', 'b'])
d.fromkeys('ab', 1)
d | length
d | list
d | first
d | items | list
d.items() | first
'b' in d.keys()
1 in d.values()
('b', 1) in d.items()
d == d.copy()
l.append(4)
l.append is defined
l.count(1)
l.index(2)
l.index(9)
l.index(1, 1)
l.copy()
(1, 2, 1).count(1)
(1, 2).index(2)
l.sort()
l.reverse()
l.pop()
l.extend([1])
l.insert(0, 1)
l.remove(1)
n.bit_length()
n.real
n.nope
f.is_integer()
(4.0).is_integer()
dict(a=1, b=2)
dict([('a', 1)])
dict({'a': 1}, b=2)
dict(1)
namespace(a=1)
namespace(a=1).a
namespace({'a': 1}).a
x
x.y
x['y']
x()
x | default('d')
x | d
'' | default('d')
'' | default('d', true)
'' | default('d', boolean=True)
none | default('d')
none | default('d', true)
x is defined
x is undefined
x | length
x | list
x | string
x | upper
x | tojson
x + 1
x ~ 'a'
x == x
x == none
x == y
not x
x | e
x | int
x | float
x | join(',')
x | first
x | trim
x | replace('a', 'b')
x | items | list
[x]
x[0]
-x
x < 1
x is iterable
x is sequence
x is string
x is none
x is callable
x | map('upper') | list
x | select | list
x | sort
x | abs
x | round
none.x
none.x.y
none['x']
none | length
none | list
none | upper
none | e
none + 1
none()
(1).x
true.x is defined
-5 | abs
(-5) | abs
-5.5 | abs
'a' | abs
d | attr('items')
d | attr('b')
s | attr('upper')
s | attr('nope') is defined
l | batch(2) | list
l | batch(2, 'x') | list
[] | batch(2) | list
range(7) | batch(3, fill_with=0) | list
l | slice(2) | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
s | capitalize
'hELLO' | capitalize
s | center(20)
s | center ~ '|'
s | center(width=16) ~ '|'
5 | center(5) ~ '|'
d | dictsort
d | dictsort(true)
d | dictsort(by='value')
{'b': 2, 'a': 3} | dictsort(false, 'value')
{'b': 2, 'a': 3} | dictsort(reverse=true)
{'b': 2, 'A': 3} | dictsort(case_sensitive=true)
l | dictsort
html | e
html | escape
html | e | e
html | forceescape
html | e | forceescape
html | e ~ '<b>'
(html | e) + '<b>'
'<b>' + (html | e)
html | safe
html | safe | e
(html | safe) + '<'
(html | e).upper()
html | e | upper
[html | e]
5 | e
none | escape
'%s' | e | format('<')
('<a>' | safe) % '<b>'
('<%s>' | safe) % '<b>'
('-' | safe).join(['<', 'a'])
1000 | filesizeformat
1 | filesizeformat
0 | filesizeformat
999 | filesizeformat
1500000 | filesizeformat
1500000 | filesizeformat(true)
1024 | filesizeformat(binary=true)
1e30 | filesizeformat
'123456' | filesizeformat
2.5 | filesizeformat
l | first
[] | first
[] | first is defined
s | first
d | last
l | last
[] | last
s | last
'3.5' | float
'abc' | float
'abc' | float(1.5)
'abc' | float(default=2)
none | float
3 | float
'1e3' | float
' 5 ' | float
'inf' | float
'nan' | float
'1_0' | float
true | float
[] | float
'%s and %s' | format('a', 'b')
'%(a)s' | format(a=1)
'%s' | format
'%d' | format('a')
rows | groupby('n') | list
rows | groupby('name')
rows | groupby('name', case_sensitive=true)
rows | groupby('in.k') | map('first') | list
rows | groupby('zz', default='q')
(rows | groupby('n'))[0].grouper
(rows | groupby('n'))[0].list | length
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2)
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb\n\nc' | indent('--', first=True, blank=True)
'a\n' | indent
'' | indent
5 | indent
'42' | int
'42.9' | int
'abc' | int
'abc' | int(7)
'abc' | int(default=8)
'ff' | int(base=16)
'0x1f' | int(0, 16)
'0b11' | int(0, 2)
'0x1f' | int
3.9 | int
-3.9 | int
none | int
'' | int
' 7 ' | int
'1_000' | int
'٣' | int
true | int
[] | int
1e20 | int
l | join
l | join(', ')
rows | join(',', 'name')
rows | join(',', attribute='n')
[1, none, true] | join('-')
s | join('.')
d | join(',')
5 | join
rows | map(attribute='in.k') | join
s | length
u | length
l | count
5 | length
range(5) | list
s | list
'abc' | list
5 | list
s | lower
5 | lower
rows | map(attribute='name') | list
rows | map(attribute='zz', default='q') | list
rows | map(attribute='zz') | list
rows | map('length') | list
words | map('upper') | join
words | map('replace', 'b', 'x') | join
words | map
[[1, 2], [3]] | map('first') | list
[[1, 2], [3]] | map(attribute=0) | list
[[1, 2], [3]] | map('join', '-') | list
words | map('nofilter') | list
l | max
l | min
words | max
words | min
words | max(case_sensitive=true)
rows | max(attribute='n')
[] | max
[1, 'a'] | max
d | pprint
[1, 2] | random is defined
[] | random is defined
l | reject('odd') | list
l | reject('gt', 1) | list
l | select('odd') | list
l | select | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
l | select('in', [1, 2]) | list
l | select('divisibleby', 3) | list
rows | selectattr('n', 'equalto', 2) | map(attribute='name') | list
rows | selectattr('n') | list | length
rows | rejectattr('n', 'eq', 2) | map(attribute='name') | list
rows | selectattr('name', 'in', ['a', 'b']) | list | length
rows | selectattr('zz', 'defined') | list
rows | selectattr('zz') | list
rows | rejectattr('zz') | list | length
rows | selectattr('in.k', '==', 'x') | list | length
rows | selectattr | list
l | select('nope') | list
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace(old='l', new='L', count=2)
5 | replace(5, 6)
s | reverse
l | reverse | list
d | reverse | list
5 | reverse
2.5 | round
3.5 | round
2.567 | round(2)
2.567 | round(1, 'ceil')
2.567 | round(1, 'floor')
2.567 | round(method='ceil')
42 | round
1234 | round(-2)
1250 | round(-2)
2.675 | round(2)
42.7 | round | int
'a' | round
2.5 | round(0, 'x')
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(true)
rows | sort(attribute='n') | map(attribute='name') | list
rows | sort(attribute='n,name') | map(attribute='name') | list
rows | sort(attribute='in.k') | map(attribute='name') | list
rows | sort(false, false, 'name') | map(attribute='name') | list
[1, 'a'] | sort
[none, 1] | sort
[[2], [1]] | sort
d | sort
5 | string
none | string
1.0 | string
[1, 'a'] | string
html | striptags
'<p>a  <!-- x -->b</p>\n c &amp; &lt;d' | striptags
l | sum
[] | sum
l | sum(start=10)
rows | sum(attribute='n')
rows | sum('n', 5)
[[1], [2]] | sum(start=[])
['a'] | sum
[0.1, 0.2] | sum
"hello world-foo (bar) it's" | title
u | title
5 | title
d | tojson
d | tojson(indent=2)
d | tojson(indent=0)
d | tojson(indent='\t')
d | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
d | tojson(2)
d | tojson(true)
d | tojson(indent=2, separators=(',', ': '))
u | tojson
u | tojson(ensure_ascii=true)
quotes | tojson
none | tojson
true | tojson
1.0 | tojson
1e16 | tojson
1e400 | tojson
-1e400 | tojson
(1, 2) | tojson
[] | tojson(indent=2)
{} | tojson(indent=2)
[[], {}] | tojson(indent=2)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
range(3) | tojson
d.items() | tojson
d.items() | list | tojson
namespace(a=1) | tojson
blank | trim
'xxaxx' | trim('x')
'xxaxx' | trim(chars='x')
5 | trim
'The quick brown fox jumps over' | truncate(10)
'The quick brown fox jumps over' | truncate(10, true)
'The quick brown fox jumps over' | truncate(10, end='!')
'The quick brown fox jumps over' | truncate(10, leeway=0)
'The quick brown fox jumps over' | truncate(length=9, killwords=True, end='>', leeway=0)
'short' | truncate(10)
'abcdefghijklmnopqrst' | truncate(5)
'abc' | truncate(2)
words | unique | list
words | unique(true) | list
[1, 1.0, true, 2] | unique | list
rows | unique(attribute='n') | map(attribute='name') | list
[[1]] | unique | list
s | upper
'a b/c?d=e&f=ü' | urlencode
{'a b': 'c d', 'e': 1} | urlencode
[('a', 'b/c')] | urlencode
5 | urlencode
none | urlencode
s | wordcount
'' | wordcount
"it's a-b c_d 日本" | wordcount
'The quick brown fox jumps over the lazy dog' | wordwrap(10)
'Thequickbrownfox jumps' | wordwrap(5)
'Thequickbrownfox jumps' | wordwrap(5, false)
'well-known long-term thing' | wordwrap(7)
'well-known long-term thing' | wordwrap(7, break_on_hyphens=false)
'a b c d' | wordwrap(3, wrapstring='|')
'one two\nthree four five' | wordwrap(9)
{'class': 'a', 'id': none, 'x': '<'} | xmlattr
{'class': 'a', 'n': 5} | xmlattr(false)
{'a b': 1} | xmlattr
{} | xmlattr
s | nofilter
s is notest
5 is boolean
true is boolean
s is callable
range is callable
dict is callable
s.upper is callable
true is true
1 is true
false is false
0 is false
5 is defined
6 is divisibleby 3
6 is divisibleby(4)
6 is divisibleby 0
2 is even
3 is odd
2.0 is even
'a' is even
2 is eq 2
2 is equalto 2
2 is ne 3
2 is gt 1
2 is greaterthan 1
2 is ge 2
2 is lt 3
2 is lessthan 3
2 is le 1
2 is == 2
'upper' is filter
'nope' is filter
'xmlattr' is filter
'tojson' is filter
'odd' is test
'nope' is test
1.5 is float
1 is float
1 is in [1, 2]
3 is in([1, 2])
1 is integer
true is integer
1.0 is integer
'a' is iterable
5 is iterable
none is iterable
{} is iterable
l | map('upper') is iterable
'abc' is lower
'ABC' is upper
5 is lower
{} is mapping
[] is mapping
namespace() is mapping
none is none
x is none
1 is number
1.5 is number
true is number
'1' is number
1 is sameas 1
none is sameas none
[] is sameas []
true is sameas 1
'a' is sequence
[] is sequence
{} is sequence
(1,) is sequence
5 is sequence
none is sequence
range(3) is sequence
d.items() is sequence
l | map('upper') is sequence
'a' is string
5 is string
x is undefined
5 is undefined
s is not string
5 is not string
html | e is escaped
html is escaped
not s is string
1 is not none and 2 is defined
'%s' % 'a'
'%s %s' % ('a', 1)
'%d%%' % 5
'%5d|%-5d|%05d' % (42, 42, 42)
'%+d % d' % (5, 5)
'%x %X %o %#x %#o' % (255, 255, 8, 255, 8)
'%.2f %8.3f %-8.2f|' % (3.14159, 2.71828, 1.5)
'%e %E %g %G' % (12345.678, 12345.678, 0.00001, 1e20)
'%s' % [1, 'a']
'%s' % (none,)
'%s' % none
'%r' % 'a'
'%r %a' % ('é', 'é')
'%c%c' % (65, 'b')
'%(a)s %(b)05d' % {'a': 1, 'b': 2}
'%s' % {'a': 1}
'%.3s|%5.1s|' % ('abcdef', 'xyz')
'%*d|%-*d|' % (5, 42, 5, 42)
'%.*f' % (2, 3.14159)
'%s %s' % 'a'
'%s' % ('a', 'b')
'a' % 1
'a' % [1]
'%d' % 'a'
'%d' % 3.9
'%d' % true
'%z' % 1
'%' % 1
'%i %u' % (3, 4)
'%s' % 1.0
'%s' % true
'%d' % big
'%(zz)s' % {'a': 1}
'%(a)s' % 5
'%5s|%-5s|' % ('a', 'b')
'%05s|' % 'a'
'%#.3g %#x' % (1.0, 0)
'%.0f %.0f' % (0.5, 1.5)
'%.3d' % 5
'%f' % 1e300
'%s' % x
cycler('a', 'b').next()
joiner()()
joiner(' ')() ~ '|'
raise_exception('no')
strftime_now('%%')
messages
loop
caller
varargs
[1, 2, 3].__len__()
s.__class__
s | attr('__class__')
d._x
''.join(['a'] * 3)
(['a', 'b'] | join(' ')).split()
'a,b;c'.replace(',', ';').split(';') | last
tools | tojson
tools | tojson(indent=4)
tools[0].function.parameters.properties is defined
tools[0]['function']['name'] | upper
tools | map(attribute='function.name') | join(', ')
tools | length > 0 and tools is not string
d.a | selectattr('x', 'none') | list
[1, 2, 3] | map('string') | join
[3, 1] | sort | first
'a' 'b' | upper
-1 | abs
- 1 | abs
(1, 2) | first
[1, [2, [3]]] | string
1 + 2 ~ 'x'
1 ~ 2 + 3
2 * 3 ~ 4
'a' ~ 'b' * 2
not true == false
1 == 1 == 1
(true, false)
-2 ** -1
not not true
x or y or 'z'
1 if x else 2 if y else 3
[1, 2, 3][0] + l[1]
{'a': 1}['a']
{'a': 1}.a
{'a': 1, **{}}
(1
[1, 2
s.
'abc
1 +
foo bar
""".strip("\n")

TEMPLATES = [
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem }},{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% endfor %}",
    "{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for i in x %}a{% else %}b{% endfor %}",
    "{% for i in none %}a{% endfor %}",
    "{% for i in 'ab' %}{{ i }}-{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for a in [[1, [2, [3]]], 4] recursive %}{% if a is iterable %}[{{ loop(a) }}]{% else %}{{ a }}.{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for a in [1] %}{{ loop(a) }}{% endfor %}",
    "{{ loop is defined }}{% for a in [1] %}{{ loop is defined }}{{ loop }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.a = 'q' %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}",
    "{% set d.a = 1 %}",
    "{% set x.a = 1 %}",
    "{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }}",
    "{% if true %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% elif 0.0 %}d{% elif x %}e{% else %}f{% endif %}",
    "{% if n > 40 and n < 50 %}yes{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1, 2, 3] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set a %}<{{ n }}>{% endset %}{{ a }}{{ a | length }}{{ a is string }}",
    "{% set a | upper | replace('A', 'x') %}abc{% endset %}{{ a }}",
    "{% set a %}{% set b = 1 %}{% endset %}{{ b is defined }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 1 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% with %}{% set c = 1 %}{{ c }}{% endwith %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter upper | replace('B', 'x') %}abc{% endfilter %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(a=5) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a) %}{{ a }}[{{ caller() }}]{% endmacro %}{% call m(1) %}body {{ n }}{% endcall %}",
    "{% macro m() %}{% for i in [1, 2] %}{{ caller(i, 'z') }}{% endfor %}{% endmacro %}{% call(a, b) m() %}<{{ a }}{{ b }}>{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m() %}a{% endmacro %}{% call m() %}b{% endcall %}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_varargs }}{{ m.catch_kwargs }}{{ m.caller }}",
    "{% macro m() %}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}",
    "{% set q = 4 %}{% macro m() %}{{ q }}{% set q = 6 %}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}{{ q }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %}  x  {% endmacro %}[{{ m() | trim }}]{{ m() is string }}{{ m is callable }}",
    "{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ ['a', 'b'] | map('upper') | join }}{{ m('q') }}",
    "{% raw %}{{ x }}{% y %}{% endraw %}",
    "{%- raw -%}  {{ x }}  {%- endraw -%}  z",
    "a {# comment #} b",
    "a\n{# comment #}\nb",
    "a\n  {#- comment -#}  \nb",
    "  {% if true %}\n  a\n  {% endif %}\n  b\n",
    "  {%+ if true %}\n  a\n  {%+ endif %}\n  b\n",
    "  {%- if true -%}\n  a\n  {%- endif -%}\n  b\n",
    "{% if true +%}\na{% endif +%}\nb",
    "a  {{- n -}}  b",
    "a\n\n{{- n -}}\n\nb",
    "  {{ n }}\n  {{ n }}\n",
    "\n\n{{ n }}\n\n",
    "{{ n }}\n",
    "{{ n }}\n\n",
    "a\r\nb\rc\n",
    "x{% if true %}\n\n  y{% endif %}",
    "x {% if true %} y {% endif %} z",
    "{% for i in l %}\n{{ i }}\n{% endfor %}\n",
    "{%- for i in l %}\n    {{- i }}\n{%- endfor %}\n",
    "    {% set q = 1 %}    {% set r = 2 %}\nz",
    "{# a #}  {# b #}\nz",
    "{{ '{{' }} {{ '%}' }} { { } } {%% raw %%}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'x': 1}}}",
    "{{ 'a}}b' }}",
    "{% set q = '%}' %}{{ q }}",
    "{% generation %}a{{ n }}{% endgeneration %}b",
    "{%- generation -%} a {%- endgeneration -%} b",
    "{% block x %}a{{ n }}{% endblock %}",
    "{% block x %}a{% endblock x %}",
    "{% print n %}{% print n, s %}",
    "{% if true %}a",
    "{% endif %}",
    "{% nope %}",
    "{{ }}",
    "{% if %}a{% endif %}",
    "{{ n",
    "{# a",
    "{% raw %}a",
    "{% break %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% set q = cycler('a', 'b') %}{{ q.next() }}{{ q.next() }}{{ q.next() }}{{ q.current }}{{ q.reset() }}{{ q.current }}",
    "{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}",
    "{% set g = l | select('odd') %}{{ g | first }}{{ g | list }}",
    "{{ raise_exception('Only ' ~ n) }}",
    "{{ undefined_function() }}",
    "{% set x = [1, 2] %}{% set x = x + [3] %}{{ x }}",
    "{% set x = '' %}{% for i in range(3) %}{% set x = x ~ i %}{% endfor %}[{{ x }}]",
    "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
    "{% for i in range(3) %}{{ i }}{{ ', ' if not loop.last else '' }}{% endfor %}",
    "{% for r in rows | sort(attribute='n') %}{{ r.name }}{% endfor %}",
    "{% for g, items in rows | groupby('n') %}{{ g }}:{{ items | map(attribute='name') | join(',') }};{% endfor %}",
    "{% for g in rows | groupby('n') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}",
    "{% for row in l | batch(2) %}{{ row }}{% endfor %}",
    "{{ '%s-%s' | format(1, 'a') }}{{ '%(x)s' | format(x=2) }}",
    "{{ dict(a=1).items() | list }}{% set a = *l %}",
    "{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}",
    "{{ range(*[1, 4]) | list }}{{ dict(**{'a': 1}) }}",
    "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 1, 'b': 2}) }}",
    "{{ 1 if n }}{{ 'x' if not n }}|",
    "{{ n is defined and n is number }}{{ (n is odd) or (n is even) }}",
    "{% if s is string and s | length > 3 and not s.startswith('x') %}ok{% endif %}",
    "{% if 'a' in d and d['a'] is iterable and d['a'] is not mapping %}ok{% endif %}",
    "{%- set a = 1 -%}   {%- set b = 2 -%}   {{ a + b }}",
    "{% for i in range(2) -%}   {{ i }}   {%- endfor %}",
    "{% if true %}{% if true %}{{ 'deep' }}{% endif %}{% endif %}",
    "{{ ('a' if t else 'b') ~ ('c' if nothing else 'd') }}",
    "{{ d.a[1]['x'] is none }}{{ d.a[0] }}{{ d.a[-1] }}",
    "{{ s[:5] ~ '...' ~ s[-5:] }}",
    "{{ s.split(', ')[0].lower().replace('h', 'j') | capitalize }}",
    "{{ '\\n'.join(['a', 'b']) }}",
    "{{ \"a\\tb\" }}",
    "{% for i in [1, 2, 3] %}{% if loop.first %}<{% endif %}{{ i }}{% if loop.last %}>{% else %},{% endif %}{% endfor %}",
    "{% for message in [{'role': 'user', 'content': none}, {'role': 'a'}] %}{{ message.content }}|{{ message['content'] is defined }}|{% endfor %}",
    "{% set m = {'role': 'user'} %}{{ m.content is defined }}{{ m.content is none }}{{ m.content }}{{ 'x' if m.content else 'y' }}",
    "{{ n }}{{ neg }}{{ f }}{{ t }}{{ nothing }}{{ l }}{{ d }}{{ big }}",
    "{% set loop = 5 %}{{ loop }}",
    "{% set none = 5 %}",
    "{% set _x = 5 %}{{ _x }}",
    "{{ namespace(_x=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% for i in range(3) %}{% set q = loop.index %}{% endfor %}{{ q is defined }}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% macro m(x=[]) %}{{ x }}{% endmacro %}{{ m() }}{{ m([1]) }}",
    "{% macro m() -%}\n  a\n{%- endmacro %}\n[{{ m() }}]",
    "{% call undefined_macro() %}x{% endcall %}",
    "{{ m() }}{% macro m() %}late{% endmacro %}",
    "{% if x is defined %}a{% elif n is defined %}b{% endif %}",
    "{{ s\n | upper\n | replace('H',\n 'J') }}",
    "{{ [\n1,\n2\n] }}",
    "{{ s -}}\n\n\n{{ s }}",
    "{%if true%}a{%endif%}{{n}}{{-n-}}",
    "{{ n }} {{- ' ' -}} {{ n }}",
    "{% set t = 'x' %}{{ t }}",
    "{% for t in ['x'] %}{{ t }}{% endfor %}{{ t }}",
    "{% for _ in range(2) %}a{% endfor %}",
    "{{ l | first }}{{ l | last }}{{ l | sum }}{{ l | max }}{{ l | min }}",
    "{% do l %}",
    "{% trans %}a{% endtrans %}",
    "{% autoescape true %}{{ html }}{% endautoescape %}",
    "{% autoescape false %}{{ html }}{% endautoescape %}",
    "{% for i in l %}{{ i }}{% endfor %}{% for i in l | reverse %}{{ i }}{% endfor %}",
    "{% set x = none %}{{ x.y is defined }}{{ x }}",
    "{{ (none).y }}|{{ none.a is defined }}",
    "{{ 5.0 }}{{ 5.5 // 1 }}{{ 7 // 2 * 2.0 }}",
    "{{ [true, false, none, 1.0, 1e20, -0.0] }}",
    "{{ {'a': true, 'b': none} | tojson }}",
    "{% set q = {'a': 1} %}{% set q = dict(q, b=2) %}{{ q }}",
    "{{ d | tojson | length }}{{ (d | tojson) is string }}",
    "{% for i in d.values() %}{{ loop.length }}{% endfor %}",
    "{% for i in l | map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}",
]


def main(path):
    cases = [(f"{{{{ {line} }}}}") for line in EXPRESSIONS.split("\n") if line.strip()]
    joined = []
    for case in cases:  # a backslash at a line's end joins it to the next
        if joined and joined[-1].endswith("\\ }}"):
            joined[-1] = joined[-1][: -len(" }}")] + "\n" + case[len("{{ ") :]
        else:
            joined.append(case)
    with open(path, "w", encoding="utf-8") as file:
        print(json.dumps({"variables": VARIABLES}, ensure_ascii=False), file=file)
        for template in joined + TEMPLATES:
            output, error = render(template, VARIABLES)
            if " at 0x" in (output or ""):
                continue  # an address
            row = {"template": template, "error": error} if output is None else {"template": template, "output": output}
            print(json.dumps(row, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main(sys.argv[1])
