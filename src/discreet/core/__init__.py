"""The trusted core: noise, clipping, sampling, and what is built of them alone."""
