"""Changes to the files of a folder, traced call by call, and the disks that a power failure can leave."""
