// Command suite is the project's test command: scripts/test.sh runs it.
//
// It runs every test of the module with the go command, and beside them, once,
// the checks that are no tests: linters, generated code, builds for other systems.
// It owns the folder artifacts/test, the temporary folder of the tests and their
// environment. It promises: (1) what fails is named in the last lines, with the
// reason, the command that repeats it alone, and the folder with the logs; (2) a
// process or a file that a test leaves behind is a failure; (3) the exit status is
// 0 only when everything was run and passed. What a test proves is the test's.
package main
