package procs

import "syscall"

// Attributes put a process into a group of its own, and end it with this one
// even when this one is killed.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
