// Package freshness judges whether a root peer runs on the newest state of its
// folder, by what other peers remember of it.
//
// Raft counts on what a peer made durable: its term, its vote, the entries that it
// acknowledged. A folder that was put back from an older copy (a snapshot of a volume
// or of a virtual machine), or a copy that is started beside the original, has
// forgotten some of it and cannot tell. Others can: they remember.
//
// # The rules
//
//  1. Each start of a peer's process has a count, one more than the start before, and
//     a random nonce. Both are durable in its folder, with the nonces of the starts
//     before, before the process says hello to anybody.
//  2. A hello says the count and these nonces (History), and what the folder held when
//     the process started: term, vote and last entry (Footing).
//  3. Who is greeted remembers of each other peer the newest start that it admitted and
//     what that peer promised, before that start and since (Known). The start is durable
//     before it is answered; promises become durable with the next durable mark, a tenth
//     of a second later at most, and cost no write of their own.
//  4. Refused, as an older copy, is who comes with a smaller count than is remembered;
//     with the same count and another nonce; with a larger count and another nonce at
//     the remembered one (a copy that was started by itself meanwhile); or with a
//     footing that lacks what was promised before this start.
//  5. Refused, as unknown, is who has started more than MaxNonces times since it was
//     admitted last: its nonces do not reach back to the remembered start.
//  6. The answer to a hello says what is remembered to be promised before this start.
//     Who is greeted judges by the ends of the log, who greets by its whole log: the
//     entry must have the term that it had.
//  7. A peer takes messages of another only when that one has admitted its present
//     start. So it gets no entries that would hide what its folder lacks, and what it
//     says in return is said to who has judged it. The footing is that of the start,
//     whatever the log got since.
//  8. While a connection of an earlier start is open, a newer start is put off and the
//     process behind that connection is asked for a word that was drawn just now. When
//     it answers, two processes are alive: the newcomer is refused. When it is gone,
//     the connection ends and the newcomer is admitted.
//  9. Who is told that it is an older copy writes that down in its folder and ends. The
//     folder is never started again.
//
// # Promises
//
// In a term T a peer promises three things: to stay in T or above; to vote for nobody
// but whom it voted for in T; and that its log agrees with that of T's leader up to an
// index that it acknowledged. All three only grow: terms never go back, a vote in a
// term does not change, and the leader of T never takes back an entry that a peer
// has acknowledged to it in T. Only a leader of a later term can, and then the
// peer's own durable term is above T. Therefore a folder at a term above T has everything
// that was promised in T, one at a term below T is older, and one at T must have
// the vote and the entry. The entry is told from another at its index by its term.
//
// A leader hears acknowledgements and votes at once. Everybody hears each peer's own
// word (its promise, with the hash of its state) with about every heartbeat that brings
// something new, and with it what that peer remembers of the others. So an
// acknowledgement is known to all who can be reached after a tenth of a second.
//
// # What is refused, and what cannot be
//
//   - A copy from before the newest start: always, by each peer that was there at that
//     start or heard of it from another.
//   - A copy made since the newest start: by each peer that knows a promise behind it.
//     The leader that counted an acknowledgement knows it, others a tenth of a second
//     later. So one peer put back, and the leader of that moment away, and the third
//     away too since before the copy was made, is not found: nobody who is there
//     ever heard of it, and what only these two had acknowledged is lost. The leader, when
//     it comes back, refuses the copy.
//   - A clone beside the original: by each peer that the original is connected to.
//   - All peers put back together, or a majority of them: not by the majority. Peers of
//     copies from different moments refuse each other. That is a restore, and
//     `nokv root restore` makes another cluster of it.
package freshness
