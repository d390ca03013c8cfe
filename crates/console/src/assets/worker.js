// One stream for all tabs of this browser: an origin has six connections, and each stream would keep one.
"use strict";
const wanted = new Map();
let stream = null;
let open = "";

const send = (message) => { for (const port of wanted.keys()) port.postMessage(message); };

const renew = () => {
  const topics = [...new Set(wanted.values())].slice(0, 8).sort();
  const query = topics.map((topic) => "topic=" + encodeURIComponent(topic)).join("&");
  if (query === open && stream) return;
  if (stream) stream.close();
  stream = null;
  open = query;
  if (!query) return;
  stream = new EventSource("/stream?" + query);
  stream.onmessage = (event) => {
    const message = JSON.parse(event.data);
    for (const [port, topic] of wanted) if (topic === message.topic) port.postMessage(message);
  };
  stream.onerror = () => {
    send({ lost: true });
    // Refused, and not only interrupted: the browser does not try again by itself.
    if (stream && stream.readyState === EventSource.CLOSED) { stream = null; open = ""; setTimeout(renew, 5000); }
  };
};

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.leave) wanted.delete(port); else wanted.set(port, data.topic);
    renew();
  };
};
