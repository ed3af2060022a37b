"""Parts that tests share, a folder for each idea; ``README.md`` here lists folders and modules."""
