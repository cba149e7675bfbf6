// Package mutation shows that the rules of authority and ownership are tested: each is
// broken in the code, in a copy of the file that only the compiler sees, and some fast
// test must fail.
//
// It promises: (1) a mutation that no test notices, or only one that then never
// ends, fails the run; (2) a mutation whose place in the code is gone fails every
// run, so that the list stays true; (3) a package notices nothing before its
// unchanged tests have passed several times in a row: one that is flaky, or
// broken, is named, and fails the run.
// The mutations themselves take minutes:
//
//	go test ./internal/testing/mutation -mutate
//	go test ./internal/testing/mutation -mutate -run /rule_12   # one rule
package mutation
