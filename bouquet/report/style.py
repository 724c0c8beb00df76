"""What the page looks like, on light screens and dark ones, wide and narrow."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #5b6470; --line: #d8dde3;
  --stripe: #f5f7f9; --good: #005a91; --bad: #a84400; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14181d; --soft: #a3adb8;
  --line: #353d47; --stripe: #1b2129; --good: #7cc0ee; --bad: #f5a26b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 78rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p, figcaption { max-width: 48rem; } figcaption, .soft { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; } img { max-width: 100%; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: .3rem .5rem; text-align: right; vertical-align: bottom;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
td { white-space: nowrap; vertical-align: top; }
tr { background: var(--paper); } tbody tr:nth-child(even) { background: var(--stripe); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: inherit; white-space: normal; min-width: 6rem; }
.long { white-space: normal; text-align: left; min-width: 12rem; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em;
  background: var(--light); }
@media (prefers-color-scheme: dark) { .dot { background: var(--dark); } }
@media (max-width: 40rem) { img { width: 100%; } }
details { margin: .5rem 0; } summary { cursor: pointer; padding: .15rem 0; }
.helped { color: var(--good); } .hurt { color: var(--bad); }
"""
