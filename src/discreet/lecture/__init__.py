"""The lectures' theorems and algorithms, for comparison and study. Product code never imports them."""
