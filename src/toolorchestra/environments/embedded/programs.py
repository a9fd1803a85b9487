"""Short programs that solve the puzzles which a program can solve, one for each such family.

Each reads the variable `task`, the text of the question, and prints the answer; on another family's question it stops
with an error. They are shown as examples in the interpreter's schema and used in random legal play.
Source: project.
"""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS: Mapping[str, str] = {
    "arithmetic": r"""import re
print(eval(re.search(r'(Calculate|problem:) ([-+*() \d]+)', task)[2]))""",
    "algebra": r"""import re
left, right = re.search(r': (.*) = (-?\d+)$', task).groups()
x = re.search('[a-z]', left)[0]
f = lambda v: eval(left, {x: v}) - int(right)
print(f(0) // (f(0) - f(1)))""",
    "divisors": r"""import math, re
which, numbers = re.search(r'\((GCD|LCM)\) of these numbers: (.*)', task).groups()
print(getattr(math, which.lower())(*map(int, re.findall(r'\d+', numbers))))""",
    "letters": r"""import re
letter, text, word = re.search('letter "(.)".*: "(.*)"|backward .*: (.*)', task.lower()).groups()
print(text.count(letter) if letter else word[::-1])""",
    "bases": r"""import re
a, n, b = re.search(r'base-(\d+) number (\w+) to base-(\d+)', task).groups()
n, b, s = int(n, int(a)), int(b), ''
while n: s, n = '0123456789abcdef'[n % b] + s, n // b
print(s)""",
    "primes": r"""import re
a, b = map(int, re.search(r'between (\d+) and (\d+)', task).groups())
print(sum(n > 1 and all(n % d for d in range(2, int(n**.5) + 1)) for n in range(a, b + 1)))""",
}
