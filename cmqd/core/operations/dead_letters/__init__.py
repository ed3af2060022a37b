"""Moves of messages between queues: dead letters, rejections and redrives."""
