// Package chaos breaks whole clusters of real processes on purpose. It has
// tests and no code of its own.
//
// A schedule is a list of episodes; an episode is one fault or two at the same
// time: processes that are killed, stopped, superseded or started on the wrong
// folder; links that are cut, one-way, slow, deaf or broken; disks that fail,
// stall, are full or damaged. All connections between processes, and those of
// clients, go over proxies of package proctest, so that partitions need no right
// on the machine. Callers ask for ids, timestamps, routes and changes meanwhile
// and note every answer; the committed log is read from every root peer. TestNamespaces alone needs a right, to make
// network namespaces: it loses packets, or resets connections, in one direction, which a proxy cannot.
//
// It promises: (1) a schedule comes from a seed or from a file, is printed, and
// can be run again; (2) a run in which the load before a fault was too low, or
// in which a fault did not fire, fails; (3) a fault that this machine cannot
// have is reported as not shown, by name, and never counts as one that was;
// (4) every promise has a checker of its name (judge_test.go), and every checker
// finds what it is for (contrast_test.go); (5) a failed run leaves its schedule,
// its history and the logs of its processes in a folder that it names.
//
//	go test ./internal/testing/chaos                                  a smoke run
//	go test ./internal/testing/chaos -run Runs -v -chaos.runs 50      random schedules
//	go test ./internal/testing/chaos -run Runs -v -chaos.runs 1 -chaos.seed 7
//	go test ./internal/testing/chaos -run Runs -v -chaos.schedule testdata/all-kinds.txt
//	go test ./internal/testing/chaos -run R02Members -v -chaos.runs 50   rounds with members
//	go test ./internal/testing/chaos -run Namespaces -v -chaos.namespaces   members on links that lose packets
//
// It leaves to the simulations what real processes on one machine cannot be
// given: wall clocks that step, machines that are suspended, messages that are
// repeated or overtake each other, tiny limits of log and checkpoint.
package chaos
