"use strict";

/** What kind of word each part of a line is: `Colour.spans(text, language)` gives
 * `[{start, end, kind}]` from left to right. */
const Colour = (() => {
  const NUMBER = "(?<number>(?<![\\w.%$])-?(?:0x[\\da-f]+|\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?)(?![\\w.]))";
  const TYPE = "(?<type>\\b(?:bool|u?int(?:8|16|32|64)|float(?:16|32|64)|bfloat16|float8_\\w+)\\b)";
  const words = (list) => `(?<word>\\b(?:${list.split(" ").join("|")})\\b)`;
  const either = (...parts) => new RegExp(parts.join("|"), "giu");

  const LANGUAGES = {
    nest: either(
      "(?<note>\\((?:bound|vectorized|parallel|unrolled|pipelined|num_|atomic|maxnreg)[^()]*\\))",
      words("assume extern for input inlined kernel local output shared state version when with in"),
      TYPE,
      NUMBER,
    ),
    ir: either(
      words(
        "alloc assume call cut dot for func if in input launch module output parallel pass " +
          "pipeline program repeat size tile unrolled vectorized when workspace local shared by",
      ),
      TYPE,
      NUMBER,
    ),
    python: either(
      "(?<comment>#.*$)",
      '(?<string>"""[^"]*"""|"(?:[^"\\\\]|\\\\.)*"|\'[^\']*\')',
      words("and as def else False for from if import in lambda None not or pass return True while"),
      "(?<call>@?\\b(?:tl|te|triton|libdevice)(?:\\.\\w+)+)",
      NUMBER,
    ),
    llvm: either(
      "(?<comment>;.*$)",
      '(?<string>"[^"]*")',
      "(?<symbol>[%@][\\w.]+)",
      "(?<type>\\b(?:i\\d+|half|bfloat|float|double|ptr|void)\\b)",
      words(
        "alloca add and ashr bitcast br call define declare extractelement fadd fcmp fdiv fmul " +
          "fsub getelementptr icmp insertelement load lshr mul or phi ret select sext shl " +
          "shufflevector store sub trunc xor zext fptrunc fpext sitofp fptosi sdiv srem",
      ),
      NUMBER,
    ),
    ptx: either("(?<comment>//.*$)", "(?<symbol>%\\w+)", "(?<word>^\\s*(?:@!?%\\w+\\s+)?[a-z][\\w.]*)", "(?<type>\\.[a-z]\\w*)", NUMBER),
    asm: either("(?<comment>(?:#|//).*$)", "(?<symbol>[%$][\\w-]+|\\.L\\w+)", "(?<word>^\\s+[a-z][\\w.]*)", "(?<type>^\\s*\\.\\w+)", NUMBER),
  };

  function spans(text, language) {
    const pattern = LANGUAGES[language];
    if (!pattern || text.length > 2000) return [];
    const found = [];
    for (const match of text.matchAll(pattern)) {
      const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
      found.push({ start: match.index, end: match.index + match[0].length, kind });
    }
    return found;
  }

  return { spans };
})();
