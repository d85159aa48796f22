// Package scaffold writes the initial hand-written files of a project, and of kinds, versions, subresources,
// admission hooks and controllers that are added to it.
//
// Every command first makes a plan with the texts of all files, and writes to disk only if no file is in the way.
// Existing files are not replaced, except that lines are added to a server's definition: at positions in the syntax
// tree, with the text around them unchanged.
package scaffold
