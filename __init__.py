"""The top level of a checkout is the package ``sluice`` (docs/decisions/001-one-import-package.md).

Python finds the package in ``sluice/``, whose links lead back here. This file is for tools that
read relative imports as text: ``from ...protocol`` in ``shuffle/gate/`` is ``protocol/`` beside it.
"""
