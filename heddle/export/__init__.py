"""Finished records in the shapes of trainers and as files. Pure: records in, values or files out."""
