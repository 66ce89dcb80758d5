const box = document.getElementById("filter");
const lines = [...document.querySelectorAll("#arguments tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [row, text] of lines) row.hidden = !words.every((word) => text.includes(word));
});
