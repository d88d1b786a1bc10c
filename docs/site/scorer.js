// Which pages a search shows first: guides and references before decisions, proofs and tables.
var Scorer = {
  score: ([docname, , , , score]) =>
    score + (/^(guide|keys|reference|glossary|questions)/.test(docname) ? 4 : 0) -
    (/^(adr|evidence|proofs|develop|methods)\//.test(docname) ? 4 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
