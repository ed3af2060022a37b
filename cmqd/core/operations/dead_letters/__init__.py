"""Messages that move to another queue: dead letters, rejections and redrives."""
