"""What people and mail programs reach over HTTP: the outermost layer, beside the command line."""
