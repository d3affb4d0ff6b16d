"""A page to plan with: move a slider, see the certified epsilon; keep what you like as code, command or plan.

``discreet studio`` serves it to this machine only. All numbers come from the accountant while the slider moves;
nothing is estimated in the browser. With ``--ledger`` the page also shows what was spent and what is left.

* :mod:`discreet.studio.planning`: a wish in, certified numbers out; no network.
* :mod:`discreet.studio.planning`: what to expect of a model of a table, a rule of thumb.
* :mod:`discreet.studio.planning`: several parties and their observers.
* :mod:`discreet.studio.application`: the page and its answers over HTTP, for loopback only.
"""
