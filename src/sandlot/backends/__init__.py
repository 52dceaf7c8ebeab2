"""The backends that come with Sandlot: one file or folder each."""
