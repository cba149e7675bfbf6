package replica

import (
	"fmt"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/raft/v3"
)

// raftLogger hands raft's log to hclog: its Info is our Debug, because what
// operators need to know of elections the Core says itself. Fatal and Panic
// panic with a raftPanic, which Turn returns as an error.
type raftLogger struct {
	log     hclog.Logger
	verbose bool
}

var _ raft.Logger = (*raftLogger)(nil)

// raftPanic is a broken invariant that raft found.
type raftPanic string

func newRaftLogger(log hclog.Logger) *raftLogger {
	return &raftLogger{log: log, verbose: log.IsTrace()}
}

// Debug implements raft.Logger.
func (l *raftLogger) Debug(v ...any) {
	if l.verbose {
		l.log.Trace(fmt.Sprint(v...))
	}
}

// Debugf implements raft.Logger.
func (l *raftLogger) Debugf(format string, v ...any) {
	if l.verbose {
		l.log.Trace(fmt.Sprintf(format, v...))
	}
}

// Info implements raft.Logger.
func (l *raftLogger) Info(v ...any) {
	if l.log.IsDebug() {
		l.log.Debug(fmt.Sprint(v...))
	}
}

// Infof implements raft.Logger.
func (l *raftLogger) Infof(format string, v ...any) {
	if l.log.IsDebug() {
		l.log.Debug(fmt.Sprintf(format, v...))
	}
}

// Warning implements raft.Logger.
func (l *raftLogger) Warning(v ...any) { l.Info(v...) }

// Warningf implements raft.Logger.
func (l *raftLogger) Warningf(format string, v ...any) { l.Infof(format, v...) }

// Error implements raft.Logger.
func (l *raftLogger) Error(v ...any) { l.log.Error(fmt.Sprint(v...)) }

// Errorf implements raft.Logger.
func (l *raftLogger) Errorf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }

// Fatal implements raft.Logger.
func (l *raftLogger) Fatal(v ...any) { panic(raftPanic(fmt.Sprint(v...))) }

// Fatalf implements raft.Logger.
func (l *raftLogger) Fatalf(format string, v ...any) { panic(raftPanic(fmt.Sprintf(format, v...))) }

// Panic implements raft.Logger.
func (l *raftLogger) Panic(v ...any) { panic(raftPanic(fmt.Sprint(v...))) }

// Panicf implements raft.Logger.
func (l *raftLogger) Panicf(format string, v ...any) { panic(raftPanic(fmt.Sprintf(format, v...))) }
