"""How the page of a report looks, light and dark."""

STYLE = """
:root{color-scheme:light dark;--paper:#f7f7f5;--card:#fff;--ink:#1c2126;--soft:#5b6670;--line:#e2e5e7;
--pass:#17794a;--warn:#9a6200;--fail:#b8202f;--undetermined:#6a4ab5;--field:#eef0f1;
--r5:#20659f;--r4:#5b9ad0;--r3:#a9cdea;--r2:#f0c24f;--r1:#e38330;--r0:#b9450c;--bad:#d0103a;--void:#9aa3aa}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--card:#1c2024;--ink:#e7eaec;--soft:#9aa5ae;
--line:#30363b;--pass:#54c98b;--warn:#e2ac4a;--fail:#ff6b76;--undetermined:#b49bf2;--field:#262b30;
--r5:#69b1ee;--r4:#3f82bd;--r3:#2c547a;--r2:#d8aa3c;--r1:#dd7d2d;--r0:#b94a1a;--bad:#ff3d63;--void:#66707a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header{border-left:6px solid var(--grade);padding:2px 0 2px 18px;margin-bottom:22px}
h1{font-size:23px;line-height:1.3;margin:0 0 6px;font-weight:650;overflow-wrap:anywhere}
h2{font-size:16px;margin:0 0 12px;font-weight:650}
p{margin:0 0 10px}
.soft,.facts{color:var(--soft)}
.facts{font-size:14px;margin:0;overflow-wrap:anywhere}
section,details{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:18px 20px;margin:0 0 16px;overflow-wrap:anywhere}
.more{border:0;border-top:1px solid var(--line);border-radius:0;padding:12px 0 0;margin:16px 0 0}
.more summary{font-size:14px;color:var(--soft)}
summary{cursor:pointer;font-weight:650;font-size:16px}
details[open]>summary{margin-bottom:12px}
.more{border:0;border-top:1px solid var(--line);border-radius:0;padding:12px 0 0;margin:16px 0 0}
.more>summary{font-size:14px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;
margin:0 0 16px;padding:0}
.tiles li{list-style:none;background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:12px 16px}
.tiles b{display:block;font-size:24px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
.pass{--grade:var(--pass)}.warn{--grade:var(--warn)}.fail{--grade:var(--fail)}
.undetermined{--grade:var(--undetermined)}
.chip{display:inline-block;color:var(--grade);border:1px solid var(--grade);border-radius:99px;
font-size:12px;line-height:1;padding:4px 9px;font-weight:600;white-space:nowrap;vertical-align:2px}
.finding{border-left:4px solid var(--grade);padding:0 0 0 14px;margin:0 0 16px}
.finding:last-child{margin-bottom:0}
.finding h3{margin:0 0 4px;font-size:15px;font-weight:650}
.finding h3 .chip{margin-left:8px}
.finding ul{margin:0;padding:0;list-style:none}
.finding li{margin:0 0 6px}
.finding .check{color:var(--soft)}
.remedy{display:block;color:var(--soft)}
.remedy::before{content:"→ "}
.map{overflow-x:auto}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.field{fill:var(--field)}
.diagonal{stroke:var(--line);stroke-width:1.5;fill:none}
.r5{fill:var(--r5);background:var(--r5)}.r4{fill:var(--r4);background:var(--r4)}
.r3{fill:var(--r3);background:var(--r3)}.r2{fill:var(--r2);background:var(--r2)}
.r1{fill:var(--r1);background:var(--r1)}.r0{fill:var(--r0);background:var(--r0)}
.bad{fill:var(--bad);background:var(--bad)}.void{fill:var(--void);background:var(--void)}
.ok{fill:var(--r4);background:var(--r4)}.none{background:var(--field);border:1px solid var(--line)}
svg text.in{fill:#fff;stroke:none;pointer-events:none}
svg text.r3,svg text.r2,svg text.r1{fill:#14202b}
.cross{stroke:#fff;stroke-width:1.6;fill:none;pointer-events:none}
@media(prefers-color-scheme:dark){svg text.r5{fill:#14202b}svg text.r3{fill:#fff}}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:12px 0 0;list-style:none;
font-size:13px;color:var(--soft)}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.ring{height:110px;background:var(--field);border-radius:4px}
.median{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 4;fill:none;vector-effect:non-scaling-stroke}
.two{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:16px}
.two>*{min-width:0}
@media(max-width:860px){.two{grid-template-columns:minmax(0,1fr);gap:0}
main{padding:18px 12px 40px}h1{font-size:20px}}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}
.meter{display:inline-block;width:84px;height:9px;border-radius:3px;background:var(--field);overflow:hidden}
.meter i{display:block;height:100%}
ul.plain{margin:0;padding-left:18px}
footer{color:var(--soft);font-size:13px}
@media print{body{background:#fff}section,details{break-inside:avoid}}
"""
