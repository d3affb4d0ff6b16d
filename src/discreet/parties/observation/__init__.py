"""Who sees what of a study, and what it costs against them."""
