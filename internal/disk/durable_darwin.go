package disk

import "os"

// syncData empties the drive's cache as well: fsync alone does not there.
func syncData(f *os.File) error { return f.Sync() }
