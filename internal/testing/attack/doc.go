// Package attack has real clusters attacked by a process of its own while others
// are served.
//
// Each attack is something that a stranger or a caller who was taken over can do
// with a connection. For each it is shown that (1) no process ends, no era is lost
// and no call of others fails, (2) no process takes more memory than its budget and
// a fifth, (3) the attack happened, and others were served meanwhile; and it is told
// how much slower they were. The short form runs among other tests: there an attack
// goes on until that is so, and memory is within a budget and a half. Its eras are of
// 30 s, which most attacks there are too short to cost: that none is lost is shown by
// flag -attack.long, where they are of 200 ms. It makes each attack last 30 s, with as
// many connections and streams as were seen to hurt.
package attack
