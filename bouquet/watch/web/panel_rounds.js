// A run's nodes, who took part in its rounds, and what they cost.
import { cells, lines, stack } from "./charts.js";
import { $, legend, make, moment, within } from "./dom.js";
import { short } from "./scale.js";

const MOST_ROWS = 500;
const number = (words, more = "") => make("td", words, { class: `number${more}` });

export function showNodes(found) {
  const nodes = found?.nodes ?? [];
  $("nodes-part").hidden = !nodes.length;
  $("nodes").querySelector("tbody").replaceChildren(...nodes.slice(0, MOST_ROWS).map((node) => {
    const which = node.names.join(", ") + (node.clients > node.names.length ? ", …" : "");
    return within("tr", [make("td", node.node, { title: `Flower's id: ${node.id}` }), number(node.clients),
      make("td", which, { class: "names" }), number(node.last_seen ?? "never"), make("td", moment(node.time)),
      number(short(node.seconds)), number(node.missed, node.missed ? " hurt" : ""), number(node.failures)]);
  }));
}

export function showRounds(found) {
  $("rounds-part").hidden = !found;
  if (!found) return;
  cells($("participation"), found.participation);
  const cost = found.cost;
  const layers = [["training", "--c0"], ["evaluation", "--c2"], ["aggregation", "--c4"], ["waiting", "--same"]]
    .filter(([name]) => cost[name]).map(([name, shade]) => ({ label: name, colour: shade, y: cost[name] }));
  stack($("seconds"), cost.round, layers, { title: "Seconds of a round" });
  legend($("seconds-legend"), layers);
  const ways = [["up", "--c1"], ["down", "--c0"]].map(([way, shade]) =>
    ({ label: way, colour: shade, x: cost.round, y: cost[`bytes_${way}`] }));
  lines($("bytes"), ways, [], { title: "Bytes of a round", zero: true });
  legend($("bytes-legend"), ways);
  $("failures").hidden = !found.failed;
  $("failed").textContent = found.failed ? `(${found.failed})` : "(none)";
  $("failures").querySelector("tbody").replaceChildren(...found.failures.toReversed().map((one) =>
    within("tr", [number(one.round), make("td", one.client), make("td", one.reason)])));
}
