// Package ownership searches the protocol of ownership exhaustively, within bounds. It
// holds tests only.
package ownership
